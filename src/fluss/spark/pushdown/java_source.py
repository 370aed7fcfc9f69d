"""The Java that tells a Python data source what Spark's optimizer knows: columns, conditions, limits, ``count(*)``.

Spark has interfaces for all of this, but not for data sources in Python. So a rule at the end of its optimizer takes
each scan of a Fluss table back, puts a table in its place that has these interfaces, and lets Spark's own
``V2ScanRelationPushDown`` decide again what is read. The scans that come out of it are Spark's own, with fewer columns
and with hints in their options (``fluss.spark.pushdown.hints``); executors see nothing but classes of Spark.

Hints never change a result. Spark evaluates every condition and every limit again, and a reader may ignore them. Which
rows a DataFrame has is decided when it is first read: the first reader answers with a snapshot, and all others of the
same DataFrame are given it.

Streams are planned differently (``fluss.spark.pushdown.java_streams``).

The text is compiled by Janino: Java 8 without generics, lambdas and annotations, and with every import
by its name: for ``import a.*`` it would look for each name in each package. ``%FILTER_KEY%`` and such stand for the
names of hints.
"""

from __future__ import annotations

from typing import Final

from fluss.spark.pushdown.hints import FILTER_KEY, LIMIT_KEY, ROW_COUNT, SNAPSHOT, SNAPSHOT_KEY
from fluss.spark.pushdown.java_streams import STREAM_CLASSES

PACKAGE: Final = "flussbett.spark"
RULE_CLASS: Final = f"{PACKAGE}.Pushdown"

_TEXT: Final = (
    r"""
package %PACKAGE%;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy;
import org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.V2ScanRelationPushDown$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatch;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStreamBase;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.AlwaysFalse;
import org.apache.spark.sql.sources.AlwaysTrue;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.IsNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Not;
import org.apache.spark.sql.sources.Or;
import org.apache.spark.sql.sources.StringContains;
import org.apache.spark.sql.sources.StringEndsWith;
import org.apache.spark.sql.sources.StringStartsWith;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StringType$;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.immutable.Seq;

/** The rule of the optimizer. Whatever goes wrong in it, the plan stays as it was. */
public class Pushdown extends Rule {
  public static final String OPTION = "scan.pushdown";
  static volatile String lastError = null;
  static volatile long rewrites = 0;

  /** Add the rule, and the strategy that plans its streams, to a session; a second time changes nothing. */
  public static void install(org.apache.spark.sql.classic.SparkSession session) {
    org.apache.spark.sql.ExperimentalMethods methods = session.experimental();
    Iterator rules = Scala.iterator(methods.extraOptimizations());
    while (rules.hasNext()) if (rules.next() instanceof Pushdown) return;
    methods.extraOptimizations_$eq(Scala.with(methods.extraOptimizations(), new Pushdown()));
    methods.extraStrategies_$eq(Scala.with(methods.extraStrategies(), new StreamStrategy()));
    methods.extraStrategies_$eq(Scala.with(methods.extraStrategies(), new BatchStrategy(session)));
  }

  /** What went wrong last, for tests; null if nothing has. */
  public static String lastError() { return lastError; }

  /** How many scans have been replaced, for tests. */
  public static long rewrites() { return rewrites; }

  public TreeNode apply(TreeNode given) {
    LogicalPlan plan = (LogicalPlan) given;
    try {
      if (!isOn()) return plan;
      LogicalPlan pruned = (LogicalPlan) plan.transformDown(new PruneStreams());
      TakeBack takeBack = new TakeBack();
      LogicalPlan pushed = (LogicalPlan) pruned.transform(takeBack);
      if (takeBack.count > 0) pushed = V2ScanRelationPushDown$.MODULE$.apply(pushed);
      // What the rest of the query refers to must still be there, under the same ids.
      if (!pushed.outputSet().equals(plan.outputSet())) return plan;
      return pushed;
    } catch (Throwable error) {
      java.io.StringWriter text = new java.io.StringWriter();
      error.printStackTrace(new java.io.PrintWriter(text));
      lastError = text.toString();
      return plan;
    }
  }

  public static boolean isOn() {
    return SQLConf.get().getConfString("spark.sql.fluss." + OPTION, "true").equalsIgnoreCase("true");
  }

  /** Whether a data source is "fluss", or that of one table ("fluss__sales__orders"), and may be replaced. */
  static boolean isOurs(Table table, CaseInsensitiveStringMap options) {
    if (!(table instanceof PythonTable) || !options.getBoolean(OPTION, true)) return false;
    return table.name().equals("fluss") || table.name().startsWith("fluss__");
  }

  /** The table of a scan that may be replaced, with what Spark can tell it; null if it may not. */
  static PushdownTable tableOf(Table table, CaseInsensitiveStringMap options) {
    if (table instanceof PushdownTable && options.getBoolean(OPTION, true)) return (PushdownTable) table;
    return isOurs(table, options) ? new PushdownTable((PythonTable) table) : null;
  }
}

/** Collections of Scala. */
class Scala {
  static Iterator iterator(scala.collection.Iterable all) {
    return scala.jdk.javaapi.CollectionConverters.asJava(all.iterator());
  }

  static Seq seq(List all) {
    return (Seq) scala.jdk.javaapi.CollectionConverters.asScala(all).toList();
  }

  static Seq with(Seq all, Object another) {
    List joined = new ArrayList();
    for (Iterator each = iterator(all); each.hasNext();) joined.add(each.next());
    joined.add(another);
    return seq(joined);
  }
}

// Batch queries

/** Takes scans of Fluss tables back, so that Spark plans them anew. */
class TakeBack extends scala.runtime.AbstractPartialFunction {
  int count = 0;

  public boolean isDefinedAt(Object node) {
    if (!(node instanceof DataSourceV2ScanRelation)) return false;
    DataSourceV2ScanRelation scan = (DataSourceV2ScanRelation) node;
    return scan.scan() instanceof PythonScan && scan.pushedFilters().isEmpty()
        && Pushdown.isOurs(scan.relation().table(), scan.relation().options());
  }

  public Object applyOrElse(Object node, scala.Function1 otherwise) {
    if (!isDefinedAt(node)) return otherwise.apply(node);
    DataSourceV2ScanRelation scan = (DataSourceV2ScanRelation) node;
    DataSourceV2Relation relation = scan.relation();
    count++;
    Pushdown.rewrites++;
    Table table = new PushdownTable((PythonTable) relation.table());
    return relation.copy(table, scan.output(), relation.catalog(), relation.identifier(), relation.options(),
        relation.timeTravelSpec());
  }
}

/** A table of a Python data source, with all that Spark can tell a table. */
public class PushdownTable implements Table, SupportsRead, SupportsWrite {
  public final PythonTable inner;
  public PushdownTable(PythonTable inner) { this.inner = inner; }
  public String name() { return inner.name(); }
  public StructType schema() { return inner.schema(); }
  public Set capabilities() { return inner.capabilities(); }
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) { return new PushdownBuilder(inner, options); }
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) { return inner.newWriteBuilder(info); }

  /** All options of a query, those that belong to the table among them. */
  public Map allOptions(CaseInsensitiveStringMap options) { return new HashMap(options.asCaseSensitiveMap()); }
}

class PushdownBuilder implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsPushDownFilters,
    SupportsPushDownLimit, SupportsPushDownAggregates {
  final PythonTable table;
  final Map options;
  StructType columns;
  Filter[] taken = new Filter[0];
  boolean hasConditions = false;
  Scan counted = null;

  PushdownBuilder(PythonTable table, CaseInsensitiveStringMap options) {
    this.table = table;
    this.options = new HashMap(options.asCaseSensitiveMap());
    this.columns = table.schema();
  }

  /** Columns are read as a whole, also where only some fields of a struct are needed. */
  public void pruneColumns(StructType required) {
    columns = Columns.named(table.schema(), new HashSet(Arrays.asList(required.fieldNames())));
  }

  public Filter[] pushFilters(Filter[] filters) {
    hasConditions = filters.length > 0;
    List understood = new ArrayList();
    String text = Conditions.all(Arrays.asList(filters), table.schema(), understood);
    if (text != null) options.put("%FILTER_KEY%", text);
    taken = (Filter[]) understood.toArray(new Filter[understood.size()]);
    // Spark evaluates all of them again.
    return filters;
  }

  public Filter[] pushedFilters() { return taken; }

  public boolean pushLimit(int rows) {
    options.put("%LIMIT_KEY%", "" + rows);
    return true;
  }

  /** Every task returns at most so many rows; Spark still has to count. */
  public boolean isPartiallyPushed() { return true; }

  public boolean pushAggregation(Aggregation aggregation) {
    AggregateFunc[] functions = aggregation.aggregateExpressions();
    if (hasConditions || aggregation.groupByExpressions().length > 0 || functions.length != 1
        || !(functions[0] instanceof CountStar)) return false;
    Reading reading = Readings.of(table).read(table.name(), new StructType(), options);
    if (reading.rowCount == null) return false;
    counted = new CountScan(reading.rowCount.longValue());
    return true;
  }

  public boolean supportCompletePushDown(Aggregation aggregation) { return false; }

  public Scan build() {
    return counted != null ? counted : new PushdownScan(table, columns, options);
  }
}

class Columns {
  static StructType named(StructType all, Set names) {
    StructType kept = new StructType();
    StructField[] fields = all.fields();
    for (int i = 0; i < fields.length; i++) if (names.contains(fields[i].name())) kept = kept.add(fields[i]);
    return kept;
  }
}

/** A number that is known without reading: of the rows in files of a lake. */
class CountScan implements LocalScan {
  final long count;
  CountScan(long count) { this.count = count; }
  public StructType readSchema() { return new StructType().add("count(*)", DataTypes.LongType, false); }
  public InternalRow[] rows() {
    return new InternalRow[] {new GenericInternalRow(new Object[] {Long.valueOf(count)})};
  }
  public String description() { return "rows of a lake, by its files"; }
}

/** A scan that asks Python for its plan when Spark wants to know its partitions. */
class PushdownScan extends PythonScan {
  final PythonTable table;
  final StructType columns;
  final Map options;

  PushdownScan(PythonTable table, StructType columns, Map options) {
    super(Readings.source(table.name()), table.name(), columns, new CaseInsensitiveStringMap(options), new Filter[0]);
    this.table = table;
    this.columns = columns;
    this.options = options;
  }

  public Batch toBatch() { return new PushdownBatch(table, columns, options); }

  /** What explain() shows. */
  public String description() {
    Object condition = options.get("%FILTER_KEY%");
    Object limit = options.get("%LIMIT_KEY%");
    return "columns " + Arrays.asList(columns.fieldNames()) + (condition == null ? "" : " where " + condition)
        + (limit == null ? "" : " limit " + limit);
  }
}

/** Equal scans of one DataFrame are equal, so that Spark reads an exchange of them once. */
class PushdownBatch implements Batch {
  final PythonTable table;
  final StructType columns;
  final Map options;
  Batch planned = null;

  PushdownBatch(PythonTable table, StructType columns, Map options) {
    this.table = table;
    this.columns = columns;
    this.options = options;
  }

  synchronized Batch planned() {
    if (planned == null) {
      Reading reading = Readings.of(table).read(table.name(), columns, options);
      planned = new PythonBatch(reading.source, table.name(), columns, new CaseInsensitiveStringMap(options));
    }
    return planned;
  }

  public InputPartition[] planInputPartitions() { return planned().planInputPartitions(); }
  public PartitionReaderFactory createReaderFactory() { return planned().createReaderFactory(); }
  public int hashCode() { return Arrays.asList(new Object[] {table, columns, options}).hashCode(); }
  public boolean equals(Object other) {
    if (!(other instanceof PushdownBatch)) return false;
    PushdownBatch that = (PushdownBatch) other;
    return table == that.table && columns.equals(that.columns) && options.equals(that.options);
  }
}

/** A plan that Python has made, and how many rows it has if that is known. */
class Reading {
  final PythonDataSourceV2 source;
  final Number rowCount;
  Reading(PythonDataSourceV2 source, Number rowCount) { this.source = source; this.rowCount = rowCount; }
}

/** The plans of one DataFrame, all of the same rows: those that were there when the first of them was made. */
public class Readings {
  static final int PLANS_MAX = 16;
  static final Map byTable = new WeakHashMap();
  final Map plans = new LinkedHashMap();
  String snapshot = "";

  static Readings of(Object table) {
    synchronized (byTable) {
      Readings known = (Readings) byTable.get(table);
      if (known == null) byTable.put(table, known = new Readings());
      return known;
    }
  }

  public static PythonDataSourceV2 source(String name) {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(name);
    return source;
  }

  synchronized Reading read(String name, StructType columns, Map options) {
    List key = Arrays.asList(new Object[] {columns, options});
    Reading known = (Reading) plans.get(key);
    if (known != null) return known;
    Map hinted = new HashMap(options);
    hinted.put("%SNAPSHOT_KEY%", snapshot);
    PythonDataSourceV2 source = source(name);
    PythonDataSourceReadInfo info =
        source.getOrCreateReadInfo(name, new CaseInsensitiveStringMap(hinted), columns, false);
    // The first partition is no partition, but what the reader has to say about the others.
    Map answer = (Map) ((Map) unpickled((byte[]) info.partitions().head())).get("value");
    snapshot = (String) answer.get("%SNAPSHOT%");
    source.setReadInfo(new PythonDataSourceReadInfo(info.func(), (Seq) info.partitions().tail()));
    Reading reading = new Reading(source, (Number) answer.get("%ROW_COUNT%"));
    if (plans.size() >= PLANS_MAX) plans.clear();
    plans.put(key, reading);
    return reading;
  }

  static Object unpickled(byte[] bytes) {
    try {
      return new net.razorvine.pickle.Unpickler().loads(bytes);
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }
}

"""
    + STREAM_CLASSES
    + r"""/**
 * Plans scans of which a query wants the rows as they are. Spark has a projection make rows of the form that its
 * operators take. Rows of sources in Python have that form already: each would be copied once more.
 */
class BatchStrategy extends SparkStrategy {
  final DataSourceV2Strategy real;

  BatchStrategy(org.apache.spark.sql.classic.SparkSession session) { real = new DataSourceV2Strategy(session); }

  public Seq apply(LogicalPlan plan) {
    Seq nothing = Scala.seq(new ArrayList());
    if (!(plan instanceof DataSourceV2ScanRelation) || !Pushdown.isOn()) return nothing;
    DataSourceV2ScanRelation scan = (DataSourceV2ScanRelation) plan;
    if (!(scan.scan() instanceof PythonScan)) return nothing;
    if (Pushdown.tableOf(scan.relation().table(), scan.relation().options()) == null) return nothing;
    Seq planned = real.apply(plan);
    if (planned.size() != 1 || !(planned.head() instanceof ProjectExec)) return nothing;
    ProjectExec projection = (ProjectExec) planned.head();
    SparkPlan child = (SparkPlan) projection.children().head();
    boolean isSame = child instanceof BatchScanExec && projection.projectList().equals(child.output());
    return isSame ? Scala.seq(Collections.singletonList(child)) : nothing;
  }
}

/** A scan whose rows are counted as those of the real stream: that one is what the progress of a query shows. */
public class StreamExec extends MicroBatchScanExec {
  /** Spark makes copies with the constructor that has the parameters of the class above. */
  public StreamExec(Seq output, Scan scan, MicroBatchStream stream, Offset start, Offset end, scala.Option grouping,
      scala.Option ordering) {
    super(output, scan, stream, start, end, grouping, ordering);
  }

  public scala.Option getStream() { return scala.Option.apply(((PushdownStream) stream()).inner); }
  public String nodeName() { return "MicroBatchScan"; }
}

// Conditions

/** Conditions in the language of scan.filter. Null is the text of what cannot be said exactly. */
public class Conditions {
  // 1900-01-01 in all zones. Before it java.sql counts days by another calendar than Spark, and has other zones.
  static final long SAME_CALENDAR_MS = -2208988800000L + 86400000L;

  /** Return those that can be said, joined by AND, and put them into the list; null if there are none. */
  public static String all(List filters, StructType schema, List understood) {
    StringBuilder text = new StringBuilder();
    for (Iterator each = filters.iterator(); each.hasNext();) {
      Filter filter = (Filter) each.next();
      String said = of(filter, schema);
      if (said == null) continue;
      text.append(text.length() == 0 ? "" : " AND ").append(said);
      understood.add(filter);
    }
    return text.length() == 0 ? null : text.toString();
  }

  /** Take a condition of a plan apart, and keep what a data source may be told. */
  static void translate(Expression condition, List filters) {
    if (condition instanceof org.apache.spark.sql.catalyst.expressions.And) {
      translate((Expression) condition.children().head(), filters);
      translate((Expression) condition.children().last(), filters);
      return;
    }
    if (!condition.deterministic()) return;
    scala.Option said = DataSourceStrategy$.MODULE$.translateFilter(condition, false);
    if (said.isDefined()) filters.add(said.get());
  }

  static String of(Filter filter, StructType schema) {
    if (filter instanceof AlwaysTrue) return "TRUE";
    if (filter instanceof AlwaysFalse) return "FALSE";
    if (filter instanceof org.apache.spark.sql.sources.And) {
      org.apache.spark.sql.sources.And both = (org.apache.spark.sql.sources.And) filter;
      return join(both.left(), " AND ", both.right(), schema);
    }
    if (filter instanceof Or) {
      Or either = (Or) filter;
      return join(either.left(), " OR ", either.right(), schema);
    }
    if (filter instanceof Not) {
      String inner = of(((Not) filter).child(), schema);
      return inner == null ? null : "(NOT " + inner + ")";
    }
    if (filter instanceof IsNull)
      return test(((IsNull) filter).attribute(), " IS NULL", schema);
    if (filter instanceof IsNotNull)
      return test(((IsNotNull) filter).attribute(), " IS NOT NULL", schema);
    if (filter instanceof EqualTo) {
      EqualTo test = (EqualTo) filter;
      return compare(test.attribute(), " = ", test.value(), schema);
    }
    if (filter instanceof EqualNullSafe) {
      EqualNullSafe test = (EqualNullSafe) filter;
      if (test.value() == null) return test(test.attribute(), " IS NULL", schema);
      String equal = compare(test.attribute(), " = ", test.value(), schema);
      // True or false also where the column is null.
      return equal == null ? null : "(" + test(test.attribute(), " IS NOT NULL", schema) + " AND " + equal + ")";
    }
    if (filter instanceof GreaterThan) {
      GreaterThan test = (GreaterThan) filter;
      return compare(test.attribute(), " > ", test.value(), schema);
    }
    if (filter instanceof GreaterThanOrEqual) {
      GreaterThanOrEqual test = (GreaterThanOrEqual) filter;
      return compare(test.attribute(), " >= ", test.value(), schema);
    }
    if (filter instanceof LessThan) {
      LessThan test = (LessThan) filter;
      return compare(test.attribute(), " < ", test.value(), schema);
    }
    if (filter instanceof LessThanOrEqual) {
      LessThanOrEqual test = (LessThanOrEqual) filter;
      return compare(test.attribute(), " <= ", test.value(), schema);
    }
    if (filter instanceof In) {
      In test = (In) filter;
      StringBuilder text = new StringBuilder();
      for (int i = 0; i < test.values().length; i++) {
        String each = test.values()[i] == null ? "NULL" : literal(test.values()[i]);
        if (each == null) return null;
        text.append(i == 0 ? "" : ", ").append(each);
      }
      return text.length() == 0 ? null : test(test.attribute(), " IN (" + text + ")", schema);
    }
    if (filter instanceof StringStartsWith) {
      StringStartsWith test = (StringStartsWith) filter;
      return like(test.attribute(), escaped(test.value()) + "%", schema);
    }
    if (filter instanceof StringEndsWith) {
      StringEndsWith test = (StringEndsWith) filter;
      return like(test.attribute(), "%" + escaped(test.value()), schema);
    }
    if (filter instanceof StringContains) {
      StringContains test = (StringContains) filter;
      return like(test.attribute(), "%" + escaped(test.value()) + "%", schema);
    }
    return null;
  }

  static String join(Filter left, String word, Filter right, StructType schema) {
    String first = of(left, schema);
    String second = of(right, schema);
    return first == null || second == null ? null : "(" + first + word + second + ")";
  }

  static String compare(String column, String sign, Object value, StructType schema) {
    String text = value == null ? null : literal(value);
    return text == null ? null : test(column, sign + text, schema);
  }

  static String like(String column, String pattern, StructType schema) {
    return test(column, " LIKE '" + pattern.replace("'", "''") + "'", schema);
  }

  static String escaped(String text) {
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_");
  }

  /** Name a column of the table. Spark quotes names that are no plain words, and puts dots between those of fields. */
  static String test(String column, String rest, StructType schema) {
    StructField[] fields = schema.fields();
    for (int i = 0; i < fields.length; i++) {
      String quoted = "`" + fields[i].name().replace("`", "``") + "`";
      boolean isPlain = fields[i].name().matches("[A-Za-z0-9_]+");
      if (!quoted.equals(column) && !(isPlain && fields[i].name().equals(column))) continue;
      DataType type = fields[i].dataType();
      boolean isComparable = type instanceof NumericType || type instanceof BooleanType || type instanceof DateType
          || type.getClass() == StringType.class || type.getClass() == StringType$.class
          || type instanceof TimestampType || type instanceof TimestampNTZType;
      return isComparable ? quoted + rest : null;
    }
    return null;
  }

  static String literal(Object value) {
    if (value instanceof Byte || value instanceof Short || value instanceof Integer || value instanceof Long)
      return value.toString();
    if (value instanceof Float || value instanceof Double) {
      double number = ((Number) value).doubleValue();
      return Double.isNaN(number) || Double.isInfinite(number) ? null : Double.toString(number);
    }
    if (value instanceof java.math.BigDecimal) return ((java.math.BigDecimal) value).toPlainString();
    if (value instanceof Boolean) return value.toString();
    if (value instanceof String) return "'" + ((String) value).replace("'", "''") + "'";
    boolean isOfSql = value instanceof java.sql.Date || value instanceof java.sql.Timestamp;
    if (isOfSql && ((java.util.Date) value).getTime() < SAME_CALENDAR_MS) return null;
    if (value instanceof java.sql.Date || value instanceof java.time.LocalDate) return "DATE '" + value + "'";
    if (value instanceof java.sql.Timestamp) return literal(((java.sql.Timestamp) value).toInstant());
    if (value instanceof java.time.Instant || value instanceof java.time.LocalDateTime)
      return "TIMESTAMP '" + value + "'";
    return null;
  }
}
"""
)

JAVA_SOURCE: Final = (
    _TEXT.replace("%PACKAGE%", PACKAGE)
    .replace("%FILTER_KEY%", FILTER_KEY)
    .replace("%LIMIT_KEY%", LIMIT_KEY)
    .replace("%SNAPSHOT_KEY%", SNAPSHOT_KEY)
    .replace("%SNAPSHOT%", SNAPSHOT)
    .replace("%ROW_COUNT%", ROW_COUNT)
)
