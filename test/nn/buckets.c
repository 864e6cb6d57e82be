/* SPDX-License-Identifier: Apache-2.0 */
/* How the weights of layers are cut into buckets, and what is gathered of a bucket. */
#include "describe.h"
#include "nn/program.h"
#include "tap.h"

/* No bucket has weights of two layers, and by default there are no more of them than that asks for. */
static void cut_by_layer(int way)
{
    lap_nn_desc_t desc = describe(LAP_NN_MODEL);
    lap_nn_plan_t plan;
    lap_nn_list_t list = {.nentries = 0};
    lap_nn_buckets_t buckets = {.count = 0};
    desc.layers = 3;
    desc.dtype = way % 2 ? LAP_BFLOAT16 : LAP_FLOAT32;
    desc.shards = way / 2 ? 2 : 1;
    tap_success(lap_nn_plan_init(&desc, 2, &plan), "a plan");
    tap_success(lap_nn_list_init(&list, &plan, 0, NULL), "its list");
    tap_success(lap_nn_buckets_init(&buckets, &list, 0, true, LAP_FLOAT32, 2, 0), "its buckets");
    size_t spans = 0, cut = 0, weights = 0;
    for (size_t i = 0; i < buckets.count; i++) {
        const lap_nn_bucket_t *bucket = &buckets.list[i];
        const lap_nn_weight_t *first = &list.weights[list.order[bucket->first]];
        for (uint32_t place = bucket->first; place <= bucket->last; place++, weights++)
            spans += list.weights[list.order[place]].layer != first->layer;
        const lap_nn_weight_t *before =
            bucket->first > 0 ? &list.weights[list.order[bucket->first - 1]] : NULL;
        cut += before && before->layer == first->layer &&
               lap_nn_is_late(&list, before) == lap_nn_is_late(&list, first) &&
               lap_nn_gathered_type(&list, before) == lap_nn_gathered_type(&list, first);
    }
    tap_ok(spans == 0 && cut == 0 && weights == list.nweights && buckets.count > 4,
           "%s, %zu shards: %zu buckets of 3 layers, %zu weights of another, %zu cut",
           lap_dtype_name(desc.dtype), desc.shards, buckets.count, spans, cut);
    lap_nn_buckets_clear(&buckets);
    lap_nn_list_clear(&list);
}

/* What is gathered of a bucket is its weights: with fp8_params a byte for each that GEMMs take in FP8. */
static void gather_bytes(bool fp8_params)
{
    lap_nn_desc_t desc = describe(LAP_NN_MODEL);
    lap_nn_plan_t plan;
    lap_nn_list_t list = {.nentries = 0};
    size_t wrong = 0, fp8 = 0;
    desc.fp8 = LAP_FP8_CURRENT;
    desc.dtype = LAP_BFLOAT16;
    desc.shards = 2;
    desc.shard_bucket = 3000;
    desc.fp8_params = fp8_params;
    tap_success(lap_nn_plan_init(&desc, 1, &plan), "a plan");
    tap_success(lap_nn_list_init(&list, &plan, 0, NULL), "its list");
    for (size_t i = 0; i < list.shards->count; i++) {
        const lap_nn_bucket_t *bucket = &list.shards->list[i];
        const lap_op_desc_t gather = lap_nn_bucket_desc(list.shards, i, LAP_NN_BUCKET_GATHER);
        const bool is_fp8 =
            list.regions[list.weights[list.order[bucket->first]].copy].dtype == LAP_FLOAT8_E4M3;
        const size_t element = is_fp8 && fp8_params ? 1 : lap_dtype_size(bucket->weights);
        wrong += gather.m * gather.cols * lap_dtype_size(gather.dtype) != bucket->count * element;
        fp8 += is_fp8;
    }
    tap_ok(wrong == 0 && fp8 > 1, "fp8_params %d: %zu of %zu buckets have other bytes", fp8_params,
           wrong, list.shards->count);
    lap_nn_list_clear(&list);
}

int main(void)
{
    for (int way = 0; way < 4; way++)
        cut_by_layer(way);
    gather_bytes(false);
    gather_bytes(true);
    return tap_done();
}
