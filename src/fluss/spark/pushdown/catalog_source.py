"""The Java of ``spark.sql.catalog.fluss``: a catalog whose questions are answered by this program.

Spark asks its catalogs in Java. This one knows nothing itself: it turns each call into a question in JSON, which Py4J
brings to the program that made the session, and makes of the answer what Spark wants. Tables are those of
``java_source``, so that Spark tells them directly what a query needs.

    question    {"verb": "table", "database": "sales", "table": "orders", ...}
    answer      {"value": ...}, or {"error": "The table ...", "kind": "no-table"}

The text is compiled by Janino, as that of ``java_source``, and after it.
"""

from __future__ import annotations

from typing import Final

from fluss.spark.pushdown.java_source import PACKAGE

CATALOG_CLASS: Final = f"{PACKAGE}.FlussCatalog"

CATALOG_SOURCE: Final = r"""
package %PACKAGE%;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsDelete;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class FlussCatalog implements TableCatalog, SupportsNamespaces {
  /** Who answers, by the setting "answers" of the catalog. */
  static final Map answerers = new ConcurrentHashMap();
  String name;
  CaseInsensitiveStringMap settings;

  public static void answerBy(String key, Function answerer) { answerers.put(key, answerer); }

  public void initialize(String name, CaseInsensitiveStringMap settings) {
    this.name = name;
    this.settings = settings;
  }

  public String name() { return name; }

  public Set capabilities() {
    return Collections.singleton(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);
  }

  // Tables

  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    Question question = new Question("tables", database(namespace));
    List names = (List) question.ask(this);
    if (question.is("no-database")) throw new NoSuchNamespaceException(namespace);
    Identifier[] found = new Identifier[question.checked(names).size()];
    for (int i = 0; i < found.length; i++) found[i] = Identifier.of(namespace, (String) names.get(i));
    return found;
  }

  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    return load(identifier, "as_of", null);
  }

  public Table loadTable(Identifier identifier, String version) throws NoSuchTableException {
    return load(identifier, "version", version);
  }

  public Table loadTable(Identifier identifier, long timestampMicros) throws NoSuchTableException {
    return load(identifier, "timestamp_us", Long.valueOf(timestampMicros));
  }

  Table load(Identifier identifier, String key, Object moment) throws NoSuchTableException {
    if (identifier.namespace().length > 1) throw new NoSuchTableException(identifier);
    Question question = new Question("table", identifier).with(key, moment);
    Map facts = (Map) question.ask(this);
    if (question.is("no-table") || question.is("no-database")) throw new NoSuchTableException(identifier);
    question.checked(Collections.emptyList());
    return CatalogTable.of(this, identifier, facts);
  }

  public Table createTable(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    List partitions = new ArrayList();
    List buckets = new ArrayList();
    Object bucketCount = null;
    for (int i = 0; i < info.partitions().length; i++) {
      Transform transform = info.partitions()[i];
      boolean isBucket = transform.name().equals("bucket");
      if (!isBucket && !transform.name().equals("identity"))
        throw new UnsupportedOperationException("Tables of Fluss are partitioned by columns, not by " + transform);
      for (int j = 0; j < transform.references().length; j++)
        (isBucket ? buckets : partitions).add(transform.references()[j].fieldNames()[0]);
      Expression[] arguments = transform.arguments();
      if (isBucket && arguments[0] instanceof Literal) bucketCount = ((Literal) arguments[0]).value();
    }
    List keys = new ArrayList();
    for (int i = 0; i < info.constraints().length; i++) {
      if (!(info.constraints()[i] instanceof PrimaryKey))
        throw new UnsupportedOperationException("Tables of Fluss have no constraint but a primary key");
      NamedReference[] columns = ((PrimaryKey) info.constraints()[i]).columns();
      for (int j = 0; j < columns.length; j++) keys.add(columns[j].fieldNames()[0]);
    }
    Question question = new Question("create-table", identifier).with("schema", info.schema().json())
        .with("partition_keys", partitions).with("bucket_keys", buckets).with("bucket_count", bucketCount)
        .with("primary_keys", keys).with("properties", info.properties());
    question.ask(this);
    if (question.is("table-exists")) throw new TableAlreadyExistsException(identifier);
    if (question.is("no-database")) throw new NoSuchNamespaceException(identifier.namespace());
    question.checked(Collections.emptyList());
    try {
      return loadTable(identifier);
    } catch (NoSuchTableException dropped) {
      throw new UnsupportedOperationException(dropped.getMessage());
    }
  }

  public Table alterTable(Identifier identifier, TableChange[] changes) throws NoSuchTableException {
    List all = new ArrayList();
    for (int i = 0; i < changes.length; i++) {
      Map change = new HashMap();
      if (changes[i] instanceof TableChange.AddColumn) {
        TableChange.AddColumn added = (TableChange.AddColumn) changes[i];
        String columnName = String.join(".", added.fieldNames());
        StructField column = new StructField(columnName, added.dataType(), added.isNullable(), Metadata.empty());
        if (added.comment() != null) column = column.withComment(added.comment());
        change.put("add", new StructType().add(column).json());
      } else if (changes[i] instanceof TableChange.SetProperty) {
        TableChange.SetProperty property = (TableChange.SetProperty) changes[i];
        change.put("set", Arrays.asList(new Object[] {property.property(), property.value()}));
      } else if (changes[i] instanceof TableChange.RemoveProperty) {
        change.put("reset", ((TableChange.RemoveProperty) changes[i]).property());
      } else {
        throw new UnsupportedOperationException("A table of Fluss takes new columns at its end, and properties; not "
            + changes[i].getClass().getSimpleName());
      }
      all.add(change);
    }
    Question question = new Question("alter-table", identifier).with("changes", all);
    question.ask(this);
    if (question.is("no-table")) throw new NoSuchTableException(identifier);
    question.checked(Collections.emptyList());
    return loadTable(identifier);
  }

  public boolean dropTable(Identifier identifier) {
    Question question = new Question("drop-table", identifier);
    question.ask(this);
    if (question.is("no-table") || question.is("no-database")) return false;
    question.checked(Collections.emptyList());
    return true;
  }

  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException("Fluss cannot rename a table; create " + to + " and copy the rows");
  }

  // Databases

  /** The database that every cluster has is meant where none is named, as in fluss.orders. */
  public String[] defaultNamespace() { return new String[] {"fluss"}; }

  static String database(String[] namespace) { return namespace.length == 0 ? "fluss" : String.join(".", namespace); }

  public String[][] listNamespaces() {
    Question question = new Question("databases", (String) null);
    List names = question.checked((List) question.ask(this));
    String[][] found = new String[names.size()][];
    for (int i = 0; i < found.length; i++) found[i] = new String[] {(String) names.get(i)};
    return found;
  }

  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length == 0) return listNamespaces();
    loadNamespaceMetadata(namespace);
    return new String[0][];
  }

  public Map loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    Question question = new Question("database", database(namespace));
    Map facts = (Map) question.ask(this);
    if (question.is("no-database")) throw new NoSuchNamespaceException(namespace);
    question.checked(Collections.emptyList());
    return facts;
  }

  public void createNamespace(String[] namespace, Map metadata) throws NamespaceAlreadyExistsException {
    Question question = new Question("create-database", database(namespace)).with("properties", metadata);
    question.ask(this);
    if (question.is("database-exists")) throw new NamespaceAlreadyExistsException(namespace);
    question.checked(Collections.emptyList());
  }

  public void alterNamespace(String[] namespace, NamespaceChange[] changes) throws NoSuchNamespaceException {
    List all = new ArrayList();
    for (int i = 0; i < changes.length; i++) {
      Map change = new HashMap();
      if (changes[i] instanceof NamespaceChange.SetProperty) {
        NamespaceChange.SetProperty property = (NamespaceChange.SetProperty) changes[i];
        change.put("set", Arrays.asList(new Object[] {property.property(), property.value()}));
      } else {
        change.put("reset", ((NamespaceChange.RemoveProperty) changes[i]).property());
      }
      all.add(change);
    }
    Question question = new Question("alter-database", database(namespace)).with("changes", all);
    question.ask(this);
    if (question.is("no-database")) throw new NoSuchNamespaceException(namespace);
    question.checked(Collections.emptyList());
  }

  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException, NonEmptyNamespaceException {
    Question question = new Question("drop-database", database(namespace)).with("cascade", Boolean.valueOf(cascade));
    question.ask(this);
    if (question.is("no-database")) throw new NoSuchNamespaceException(namespace);
    if (question.is("not-empty")) throw new NonEmptyNamespaceException(namespace);
    question.checked(Collections.emptyList());
    return true;
  }
}

/** One question, and what kind of error was the answer. */
class Question {
  static final com.fasterxml.jackson.databind.ObjectMapper JSON = new com.fasterxml.jackson.databind.ObjectMapper();
  final Map fields = new HashMap();
  String error = null;
  String kind = null;

  Question(String verb, String database) {
    fields.put("verb", verb);
    fields.put("database", database);
  }

  Question(String verb, Identifier identifier) {
    this(verb, FlussCatalog.database(identifier.namespace()));
    fields.put("table", identifier.name());
  }

  Question with(String key, Object value) {
    fields.put(key, value);
    return this;
  }

  Object ask(FlussCatalog catalog) {
    Function answerer = (Function) FlussCatalog.answerers.get(catalog.settings.get("answers"));
    if (answerer == null)
      throw new UnsupportedOperationException("Nobody answers for the catalog " + catalog.name + "; make a FlussSpark");
    try {
      Map answer = (Map) JSON.readValue((String) answerer.apply(JSON.writeValueAsString(fields)), Map.class);
      error = (String) answer.get("error");
      kind = (String) answer.get("kind");
      return answer.get("value");
    } catch (java.io.IOException impossible) {
      throw new IllegalStateException(impossible);
    }
  }

  boolean is(String kind) { return kind.equals(this.kind); }

  /** Return an answer that is one; an error that Spark has no name for is its sentence. */
  List checked(List answer) {
    if (error != null) throw new UnsupportedOperationException(error);
    return answer;
  }
}

/** A table of the catalog: its options go with every query on it. */
class CatalogTable extends PushdownTable {
  final FlussCatalog catalog;
  final Identifier identifier;
  final Map facts;

  static CatalogTable of(FlussCatalog catalog, Identifier identifier, Map facts) {
    boolean hasKey = Boolean.TRUE.equals(facts.get("has_key"));
    return hasKey ? new KeyedCatalogTable(catalog, identifier, facts) : new CatalogTable(catalog, identifier, facts);
  }

  CatalogTable(FlussCatalog catalog, Identifier identifier, Map facts) {
    super(new PythonTable(Readings.source("fluss"), "fluss",
        (StructType) DataType.fromJson((String) facts.get("schema"))));
    this.catalog = catalog;
    this.identifier = identifier;
    this.facts = facts;
  }

  public String name() { return catalog.name() + "." + identifier; }

  public Map properties() { return (Map) facts.get("properties"); }

  public Transform[] partitioning() {
    List keys = (List) facts.get("partition_keys");
    Transform[] transforms = new Transform[keys.size()];
    for (int i = 0; i < transforms.length; i++) transforms[i] = Expressions.identity((String) keys.get(i));
    return transforms;
  }

  public Map allOptions(CaseInsensitiveStringMap given) {
    Map all = new HashMap();
    // Keys of a query win, in whatever case they are written.
    all.putAll(new CaseInsensitiveStringMap((Map) facts.get("options")));
    all.putAll(given);
    return all;
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(allOptions(given));
    boolean isOn = Pushdown.isOn() && options.getBoolean(Pushdown.OPTION, true);
    return isOn ? super.newScanBuilder(options) : inner.newScanBuilder(options);
  }

  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return super.newWriteBuilder(new CatalogWriteInfo(info, this));
  }
}

/** A table with a primary key: rows can be deleted by a condition that Fluss can say, too. */
class KeyedCatalogTable extends CatalogTable implements SupportsDelete {
  KeyedCatalogTable(FlussCatalog catalog, Identifier identifier, Map facts) { super(catalog, identifier, facts); }

  public boolean canDeleteWhere(Filter[] filters) {
    List understood = new ArrayList();
    Conditions.all(Arrays.asList(filters), schema(), understood);
    return understood.size() == filters.length;
  }

  public void deleteWhere(Filter[] filters) {
    String condition = Conditions.all(Arrays.asList(filters), schema(), new ArrayList());
    Question question = new Question("delete", identifier).with("where", condition);
    question.ask(catalog);
    question.checked(Collections.emptyList());
  }
}

class CatalogWriteInfo implements LogicalWriteInfo {
  final LogicalWriteInfo given;
  final CatalogTable table;
  CatalogWriteInfo(LogicalWriteInfo given, CatalogTable table) { this.given = given; this.table = table; }
  public String queryId() { return given.queryId(); }
  public StructType schema() { return given.schema(); }
  public CaseInsensitiveStringMap options() {
    return new CaseInsensitiveStringMap(table.allOptions(given.options()));
  }
}
""".replace("%PACKAGE%", PACKAGE)
