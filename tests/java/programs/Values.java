import java.math.BigDecimal;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericArray;
import org.apache.fluss.row.GenericMap;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalArray;
import org.apache.fluss.row.InternalMap;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.row.TimestampLtz;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.JsonNodeFactory;
import org.apache.fluss.types.ArrayType;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DecimalType;
import org.apache.fluss.types.MapType;
import org.apache.fluss.types.RowType;

/**
 * Rows of the client as JSON, and back. A row is a list; decimals are texts, bytes are hex, dates and times are numbers
 * (days, milliseconds of the day), timestamps are milliseconds and nanoseconds, a map is a list of pairs.
 */
final class Values {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;

    private Values() {}

    static GenericRow toRow(JsonNode json, RowType type) {
        GenericRow row = new GenericRow(type.getFieldCount());
        for (int i = 0; i < type.getFieldCount(); i++) {
            row.setField(i, toValue(json.get(i), type.getTypeAt(i)));
        }
        return row;
    }

    private static Object toValue(JsonNode json, DataType type) {
        if (json == null || json.isNull()) {
            return null;
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return json.asBoolean();
            case TINYINT:
                return (byte) json.asInt();
            case SMALLINT:
                return (short) json.asInt();
            case INTEGER:
            case DATE:
            case TIME_WITHOUT_TIME_ZONE:
                return json.asInt();
            case BIGINT:
                return json.asLong();
            case FLOAT:
                return (float) json.asDouble();
            case DOUBLE:
                return json.asDouble();
            case CHAR:
            case STRING:
                return BinaryString.fromString(json.asText());
            case BINARY:
            case BYTES:
                return fromHex(json.asText());
            case DECIMAL:
                DecimalType decimal = (DecimalType) type;
                return Decimal.fromBigDecimal(
                        new BigDecimal(json.asText()), decimal.getPrecision(), decimal.getScale());
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return TimestampNtz.fromMillis(json.get(0).asLong(), json.get(1).asInt());
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return TimestampLtz.fromEpochMillis(json.get(0).asLong(), json.get(1).asInt());
            case ARRAY:
                Object[] elements = new Object[json.size()];
                for (int i = 0; i < elements.length; i++) {
                    elements[i] = toValue(json.get(i), ((ArrayType) type).getElementType());
                }
                return new GenericArray(elements);
            case MAP:
                Map<Object, Object> entries = new LinkedHashMap<>();
                for (JsonNode pair : json) {
                    entries.put(
                            toValue(pair.get(0), ((MapType) type).getKeyType()),
                            toValue(pair.get(1), ((MapType) type).getValueType()));
                }
                return new GenericMap(entries);
            case ROW:
                return toRow(json, (RowType) type);
            default:
                throw new IllegalArgumentException("unknown type " + type);
        }
    }

    static JsonNode toJson(InternalRow row, RowType type) {
        ArrayNode json = JSON.arrayNode();
        for (int i = 0; i < type.getFieldCount(); i++) {
            Object value = InternalRow.createFieldGetter(type.getTypeAt(i), i).getFieldOrNull(row);
            json.add(toJson(value, type.getTypeAt(i)));
        }
        return json;
    }

    private static JsonNode toJson(Object value, DataType type) {
        if (value == null) {
            return JSON.nullNode();
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return JSON.booleanNode((Boolean) value);
            case TINYINT:
            case SMALLINT:
            case INTEGER:
            case DATE:
            case TIME_WITHOUT_TIME_ZONE:
            case BIGINT:
                return JSON.numberNode(((Number) value).longValue());
            case FLOAT:
            case DOUBLE:
                return JSON.numberNode(((Number) value).doubleValue());
            case CHAR:
            case STRING:
                return JSON.textNode(value.toString());
            case BINARY:
            case BYTES:
                return JSON.textNode(toHex((byte[]) value));
            case DECIMAL:
                return JSON.textNode(((Decimal) value).toBigDecimal().toPlainString());
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                TimestampNtz ntz = (TimestampNtz) value;
                return JSON.arrayNode().add(ntz.getMillisecond()).add(ntz.getNanoOfMillisecond());
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                TimestampLtz ltz = (TimestampLtz) value;
                return JSON.arrayNode().add(ltz.getEpochMillisecond()).add(ltz.getNanoOfMillisecond());
            case ARRAY:
                return toJson((InternalArray) value, ((ArrayType) type).getElementType());
            case MAP:
                InternalMap map = (InternalMap) value;
                ArrayNode keys = toJson(map.keyArray(), ((MapType) type).getKeyType());
                ArrayNode values = toJson(map.valueArray(), ((MapType) type).getValueType());
                ArrayNode pairs = JSON.arrayNode();
                for (int i = 0; i < keys.size(); i++) {
                    pairs.addArray().add(keys.get(i)).add(values.get(i));
                }
                return pairs;
            case ROW:
                return toJson((InternalRow) value, (RowType) type);
            default:
                throw new IllegalArgumentException("unknown type " + type);
        }
    }

    private static ArrayNode toJson(InternalArray array, DataType type) {
        InternalArray.ElementGetter getter = InternalArray.createElementGetter(type);
        ArrayNode json = JSON.arrayNode();
        for (int i = 0; i < array.size(); i++) {
            json.add(toJson(getter.getElementOrNull(array, i), type));
        }
        return json;
    }

    private static byte[] fromHex(String text) {
        byte[] bytes = new byte[text.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(text.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }

    private static String toHex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }
}
