import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.admin.KvSnapshotLease;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.metadata.KvSnapshots;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.ScanRecord;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.client.table.scanner.log.ScanRecords;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.fluss.types.DataTypeParser;
import org.apache.fluss.types.RowType;
import org.apache.fluss.utils.CloseableIterator;

/**
 * The Java client for tests in another language: one request per line of standard input, one answer per line of
 * standard output, both JSON. An answer has "result", or "error" with what the client said.
 */
public final class Peer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long TIMEOUT_S = 120;

    private final Connection connection;
    private final Admin admin;

    private Peer(Connection connection) {
        this.connection = connection;
        this.admin = connection.getAdmin();
    }

    public static void main(String[] settings) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        // What a library prints is no answer.
        System.setOut(System.err);
        Configuration configuration = new Configuration();
        for (String setting : settings) {
            int split = setting.indexOf('=');
            configuration.setString(setting.substring(0, split), setting.substring(split + 1));
        }
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Connection connection = ConnectionFactory.createConnection(configuration)) {
            Peer peer = new Peer(connection);
            for (String line = requests.readLine(); line != null; line = requests.readLine()) {
                ObjectNode answer = JSON.createObjectNode();
                try {
                    answer.set("result", peer.answer(JSON.readTree(line)));
                } catch (Exception error) {
                    error.printStackTrace();
                    Throwable cause = error;
                    while (cause.getCause() != null) {
                        cause = cause.getCause();
                    }
                    answer.put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
                }
                answers.println(JSON.writeValueAsString(answer));
            }
        }
    }

    private JsonNode answer(JsonNode request) throws Exception {
        String name = request.get("do").asText();
        switch (name) {
            case "create_table":
                return create(request);
            case "drop_table":
                admin.dropTable(path(request), false).get(TIMEOUT_S, TimeUnit.SECONDS);
                return JSON.nullNode();
            case "create_database":
                admin.createDatabase(request.get("name").asText(), DatabaseDescriptor.EMPTY, true)
                        .get(TIMEOUT_S, TimeUnit.SECONDS);
                return JSON.nullNode();
            case "list_tables":
                return JSON.valueToTree(
                        admin.listTables(request.get("database").asText()).get(TIMEOUT_S, TimeUnit.SECONDS));
            default:
                try (Table table = connection.getTable(path(request))) {
                    return answer(name, table, request);
                }
        }
    }

    private JsonNode answer(String name, Table table, JsonNode request) throws Exception {
        switch (name) {
            case "append":
                return append(table, request.get("rows"));
            case "upsert":
                return upsert(table, request.get("rows"), false);
            case "delete":
                return upsert(table, request.get("rows"), true);
            case "lookup":
                return lookup(table, request.get("keys"), null);
            case "prefix_lookup":
                List<String> columns = new ArrayList<>();
                request.get("columns").forEach(column -> columns.add(column.asText()));
                return lookup(table, request.get("keys"), columns);
            case "read":
                return read(table, request.get("count").asInt());
            case "read_snapshots":
                return readSnapshots(table);
            default:
                throw new IllegalArgumentException("unknown request " + name);
        }
    }

    private JsonNode create(JsonNode request) throws Exception {
        Schema.Builder schema = Schema.newBuilder();
        request.get("columns").fields().forEachRemaining(
                field -> schema.column(field.getKey(), DataTypeParser.parse(field.getValue().asText())));
        List<String> keys = texts(request.get("keys"));
        if (!keys.isEmpty()) {
            schema.primaryKey(keys);
        }
        TableDescriptor.Builder table = TableDescriptor.builder().schema(schema.build());
        table.distributedBy(request.get("buckets").asInt(), texts(request.get("bucket_keys")));
        table.partitionedBy(texts(request.get("partition_keys")));
        request.get("properties").fields().forEachRemaining(
                field -> table.property(field.getKey(), field.getValue().asText()));
        admin.createTable(path(request), table.build(), false).get(TIMEOUT_S, TimeUnit.SECONDS);
        return JSON.nullNode();
    }

    private static JsonNode append(Table table, JsonNode rows) throws Exception {
        AppendWriter writer = table.newAppend().createWriter();
        List<CompletableFuture<?>> acknowledged = new ArrayList<>();
        for (JsonNode row : rows) {
            acknowledged.add(writer.append(Values.toRow(row, table.getTableInfo().getRowType())));
        }
        writer.flush();
        return waitFor(acknowledged);
    }

    private static JsonNode upsert(Table table, JsonNode rows, boolean isDelete) throws Exception {
        UpsertWriter writer = table.newUpsert().createWriter();
        List<CompletableFuture<?>> acknowledged = new ArrayList<>();
        for (JsonNode row : rows) {
            InternalRow converted = Values.toRow(row, table.getTableInfo().getRowType());
            acknowledged.add(isDelete ? writer.delete(converted) : writer.upsert(converted));
        }
        writer.flush();
        return waitFor(acknowledged);
    }

    private static JsonNode waitFor(List<CompletableFuture<?>> acknowledged) throws Exception {
        for (CompletableFuture<?> future : acknowledged) {
            future.get(TIMEOUT_S, TimeUnit.SECONDS);
        }
        return JSON.getNodeFactory().numberNode(acknowledged.size());
    }

    /** Answers a list of rows for each key, which has the columns of the primary key or those that are named. */
    private static JsonNode lookup(Table table, JsonNode keys, List<String> columns) throws Exception {
        RowType rowType = table.getTableInfo().getRowType();
        List<String> keyNames = columns == null ? table.getTableInfo().getPrimaryKeys() : columns;
        Lookuper lookuper = columns == null
                ? table.newLookup().createLookuper()
                : table.newLookup().lookupBy(columns).createLookuper();
        RowType keyType = rowType.project(keyNames);
        ArrayNode found = JSON.createArrayNode();
        for (JsonNode key : keys) {
            ArrayNode rows = found.addArray();
            for (InternalRow row : lookuper.lookup(Values.toRow(key, keyType)).get(TIMEOUT_S, TimeUnit.SECONDS)
                    .getRowList()) {
                rows.add(Values.toJson(row, rowType));
            }
        }
        return found;
    }

    /** Answers so many records of the log: partition, bucket, offset, change, row. */
    private JsonNode read(Table table, int count) throws Exception {
        RowType rowType = table.getTableInfo().getRowType();
        ArrayNode found = JSON.createArrayNode();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
        try (LogScanner scanner = table.newScan().createLogScanner()) {
            for (int bucket = 0; bucket < table.getTableInfo().getNumBuckets(); bucket++) {
                if (table.getTableInfo().isPartitioned()) {
                    for (PartitionInfo partition : admin.listPartitionInfos(table.getTableInfo().getTablePath())
                            .get(TIMEOUT_S, TimeUnit.SECONDS)) {
                        scanner.subscribeFromBeginning(partition.getPartitionId(), bucket);
                    }
                } else {
                    scanner.subscribeFromBeginning(bucket);
                }
            }
            while (found.size() < count && System.nanoTime() < deadline) {
                ScanRecords records = scanner.poll(Duration.ofMillis(500));
                for (TableBucket bucket : records.buckets()) {
                    for (ScanRecord record : records.records(bucket)) {
                        ArrayNode answer = found.addArray();
                        answer.add(bucket.getPartitionId());
                        answer.add(bucket.getBucket());
                        answer.add(record.logOffset());
                        answer.add(record.getChangeType().shortString());
                        answer.add(Values.toJson(record.getRow(), rowType));
                    }
                }
            }
        }
        return found;
    }

    /** The rows of the latest snapshot of each bucket, from its files: bucket, log offset, rows. */
    private JsonNode readSnapshots(Table table) throws Exception {
        RowType rowType = table.getTableInfo().getRowType();
        KvSnapshots snapshots = admin.getLatestKvSnapshots(table.getTableInfo().getTablePath())
                .get(TIMEOUT_S, TimeUnit.SECONDS);
        ArrayNode found = JSON.createArrayNode();
        Map<TableBucket, Long> leased = new HashMap<>();
        for (TableBucket bucket : snapshots.getTableBuckets()) {
            if (snapshots.getSnapshotId(bucket.getBucket()).isPresent()) {
                leased.put(bucket, snapshots.getSnapshotId(bucket.getBucket()).getAsLong());
            }
        }
        if (leased.isEmpty()) {
            // The first ones are not made yet, and a lease of nothing is refused.
            return found;
        }
        KvSnapshotLease lease = admin.createKvSnapshotLease(UUID.randomUUID().toString(), 600_000);
        int unavailable = lease.acquireSnapshots(leased).get(TIMEOUT_S, TimeUnit.SECONDS).getUnavailableSnapshots().size();
        if (unavailable > 0) {
            throw new IllegalStateException(unavailable + " snapshots cannot be leased");
        }
        for (TableBucket bucket : leased.keySet()) {
            ArrayNode answer = found.addArray();
            answer.add(bucket.getBucket());
            answer.add(snapshots.getLogOffset(bucket.getBucket()).getAsLong());
            ArrayNode rows = answer.addArray();
            try (BatchScanner scanner = table.newScan().createBatchScanner(bucket, leased.get(bucket))) {
                for (CloseableIterator<InternalRow> batch = scanner.pollBatch(Duration.ofSeconds(10));
                        batch != null;
                        batch = scanner.pollBatch(Duration.ofSeconds(10))) {
                    while (batch.hasNext()) {
                        rows.add(Values.toJson(batch.next(), rowType));
                    }
                    batch.close();
                }
            }
        }
        lease.releaseSnapshots(leased.keySet()).get(TIMEOUT_S, TimeUnit.SECONDS);
        lease.dropLease().get(TIMEOUT_S, TimeUnit.SECONDS);
        return found;
    }

    private static TablePath path(JsonNode request) {
        String[] parts = request.get("table").asText().split("\\.");
        return TablePath.of(parts[0], parts[1]);
    }

    private static List<String> texts(JsonNode list) {
        List<String> found = new ArrayList<>();
        list.forEach(text -> found.add(text.asText()));
        return found;
    }
}
