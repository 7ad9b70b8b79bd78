package meander.bench;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** How many rows a key has had, told anew with every row. */
final class RowCount<K> extends KeyedProcessFunction<K, K, Tuple2<K, Long>> {

    static final ValueStateDescriptor<Long> COUNT = new ValueStateDescriptor<>("count", Types.LONG);

    private transient ValueState<Long> count;

    @Override
    public void open(OpenContext context) {
        count = getRuntimeContext().getState(COUNT);
    }

    @Override
    public void processElement(K key, Context context, Collector<Tuple2<K, Long>> output)
            throws Exception {
        Long before = count.value();
        Long now = before == null ? 1L : before + 1L;
        count.update(now);
        output.collect(Tuple2.of(key, now));
    }
}
