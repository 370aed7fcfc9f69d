"""The Java for streams, a part of ``fluss.spark.pushdown.java_source``, which says how it is written.

The columns of a stream are fixed when a query starts. So for each micro-batch the rule puts another stream into the
plan, which takes offsets and partitions from the real one and reads fewer columns.
"""

from __future__ import annotations

from typing import Final

STREAM_CLASSES: Final = r"""// Streams

/** Puts streams into the plan of a micro-batch that read only what it needs. */
class PruneStreams extends scala.runtime.AbstractPartialFunction {
  public boolean isDefinedAt(Object node) {
    return (node instanceof Project || node instanceof org.apache.spark.sql.catalyst.plans.logical.Filter)
        && scanBelow((LogicalPlan) node) != null;
  }

  /** Return the scan under a projection, conditions, or both; null if there is another one, or something between. */
  static StreamingDataSourceV2ScanRelation scanBelow(LogicalPlan node) {
    LogicalPlan below = (LogicalPlan) node.children().head();
    while (below instanceof org.apache.spark.sql.catalyst.plans.logical.Filter)
      below = (LogicalPlan) below.children().head();
    if (!(below instanceof StreamingDataSourceV2ScanRelation)) return null;
    StreamingDataSourceV2ScanRelation scan = (StreamingDataSourceV2ScanRelation) below;
    boolean isBatch = scan.startOffset().isDefined() && scan.endOffset().isDefined();
    return isBatch && scan.stream() instanceof PythonMicroBatchStreamBase
        && Pushdown.tableOf(scan.relation().table(), scan.relation().options()) != null ? scan : null;
  }

  public Object applyOrElse(Object node, scala.Function1 otherwise) {
    if (!isDefinedAt(node)) return otherwise.apply(node);
    LogicalPlan top = (LogicalPlan) node;
    StreamingDataSourceV2ScanRelation scan = scanBelow(top);
    PushdownTable table = Pushdown.tableOf(scan.relation().table(), scan.relation().options());
    StructType all = table.inner.schema();
    List filters = new ArrayList();
    boolean isPruned = top instanceof Project;
    AttributeSet used = top.references();
    for (LogicalPlan each = top; each != scan; each = (LogicalPlan) each.children().head()) {
      used = used.$plus$plus(each.references());
      if (each instanceof org.apache.spark.sql.catalyst.plans.logical.Filter)
        Conditions.translate(((org.apache.spark.sql.catalyst.plans.logical.Filter) each).condition(), filters);
    }
    List output = new ArrayList();
    Set names = new HashSet();
    for (Iterator each = Scala.iterator(scan.output()); each.hasNext();) {
      Attribute attribute = (Attribute) each.next();
      if (isPruned && !used.contains(attribute)) continue;
      output.add(attribute);
      names.add(attribute.name());
    }
    Map options = table.allOptions(scan.relation().options());
    String text = Conditions.all(filters, all, new ArrayList());
    if (text != null) options.put("%FILTER_KEY%", text);
    if (text == null && output.size() == scan.output().size()) return node;
    Pushdown.rewrites++;
    StructType columns = Columns.named(all, names);
    MicroBatchStream stream =
        new PushdownStream((MicroBatchStream) scan.stream(), table.inner.name(), columns, options);
    Scan shown = new PushdownScan(table.inner, columns, options);
    return replaced(top, scan, scan.copy(
        scan.relation(), shown, Scala.seq(output), stream, scan.startOffset(), scan.endOffset()));
  }

  static LogicalPlan replaced(LogicalPlan node, LogicalPlan old, LogicalPlan fresh) {
    if (node == old) return fresh;
    LogicalPlan child = replaced((LogicalPlan) node.children().head(), old, fresh);
    return (LogicalPlan) node.withNewChildren(Scala.seq(Collections.singletonList(child)));
  }
}

/** A stream that is another one with fewer columns; that one knows where micro-batches begin and end. */
class PushdownStream implements MicroBatchStream {
  final MicroBatchStream inner;
  final String name;
  final StructType columns;
  final Map options;

  PushdownStream(MicroBatchStream inner, String name, StructType columns, Map options) {
    this.inner = inner;
    this.name = name;
    this.columns = columns;
    this.options = options;
  }

  public PartitionReaderFactory createReaderFactory() {
    StreamReadings readings = StreamReadings.of(inner);
    PythonDataSourceV2 source = readings.source(name, columns, options);
    PythonDataSourceReadInfo info =
        source.getOrCreateReadInfo(name, new CaseInsensitiveStringMap(options), columns, true);
    scala.Option none = scala.Option.empty();
    return new PythonStreamingPartitionReaderFactory(source.source(), info.func(), columns, none, none);
  }

  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return inner.planInputPartitions(start, end);
  }
  public Offset latestOffset() { return inner.latestOffset(); }
  public Offset initialOffset() { return inner.initialOffset(); }
  public Offset deserializeOffset(String json) { return inner.deserializeOffset(json); }
  public void commit(Offset end) { inner.commit(end); }
  public void stop() { inner.stop(); }
  public String toString() { return inner.toString(); }
  public int hashCode() { return Arrays.asList(new Object[] {inner, columns, options}).hashCode(); }
  public boolean equals(Object other) {
    if (!(other instanceof PushdownStream)) return false;
    PushdownStream that = (PushdownStream) other;
    return inner == that.inner && columns.equals(that.columns) && options.equals(that.options);
  }
}

/** The readers of one running stream: the same for all micro-batches with the same plan. */
class StreamReadings {
  static final Map byStream = new WeakHashMap();
  final Map sources = new HashMap();

  static StreamReadings of(Object stream) {
    synchronized (byStream) {
      StreamReadings known = (StreamReadings) byStream.get(stream);
      if (known == null) byStream.put(stream, known = new StreamReadings());
      return known;
    }
  }

  synchronized PythonDataSourceV2 source(String name, StructType columns, Map options) {
    List key = Arrays.asList(new Object[] {columns, options});
    PythonDataSourceV2 known = (PythonDataSourceV2) sources.get(key);
    if (known == null) {
      if (sources.size() >= Readings.PLANS_MAX) sources.clear();
      sources.put(key, known = Readings.source(name));
    }
    return known;
  }
}

/** Plans the streams of the rule as Spark plans its own: not together with what is above them, but one by one. */
class StreamStrategy extends SparkStrategy {
  public Seq apply(LogicalPlan plan) {
    StreamingDataSourceV2ScanRelation scan = scanOf(plan);
    if (scan == null) return Scala.seq(new ArrayList());
    SparkPlan planned;
    if (plan instanceof Project) {
      planned = new ProjectExec(((Project) plan).projectList(), planLater((LogicalPlan) plan.children().head()));
    } else if (plan instanceof org.apache.spark.sql.catalyst.plans.logical.Filter) {
      Expression condition = ((org.apache.spark.sql.catalyst.plans.logical.Filter) plan).condition();
      planned = new FilterExec(condition, planLater((LogicalPlan) plan.children().head()));
    } else {
      SparkPlan exec = new StreamExec((Seq) scan.output(), scan.scan(), (MicroBatchStream) scan.stream(),
          (Offset) scan.startOffset().get(), (Offset) scan.endOffset().get(), scala.Option.empty(),
          scala.Option.empty());
      // The projection makes rows of the form that operators of Spark take.
      planned = exec.supportsColumnar() ? exec : new ProjectExec((Seq) scan.output(), exec);
    }
    return Scala.seq(Collections.singletonList(planned));
  }

  static StreamingDataSourceV2ScanRelation scanOf(LogicalPlan plan) {
    while (plan instanceof Project || plan instanceof org.apache.spark.sql.catalyst.plans.logical.Filter)
      plan = (LogicalPlan) plan.children().head();
    boolean isOurs = plan instanceof StreamingDataSourceV2ScanRelation
        && ((StreamingDataSourceV2ScanRelation) plan).stream() instanceof PushdownStream;
    return isOurs ? (StreamingDataSourceV2ScanRelation) plan : null;
  }
}

"""
