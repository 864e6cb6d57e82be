/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules from YAML files: the layouts that are in use load as they are, and every mistake is reported
 * with its file and line.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lap/tp_overlap.h>

#include "tap.h"

static char folder[] = "/tmp/lap-yaml-XXXXXX";
static char path[64];

static lap_status_t load_bytes(const char *text, size_t bytes, int tp, lap_tp_overlap_t *overlap)
{
    FILE *file = fopen(path, "w");
    if (!file || fwrite(text, 1, bytes, file) != bytes || fclose(file) != 0) {
        tap_ok(false, "%s can be written", path);
        exit(tap_done());
    }
    return lap_tp_overlap_load(path, tp, overlap);
}

static lap_status_t load(const char *text, int tp, lap_tp_overlap_t *overlap)
{
    return load_bytes(text, strlen(text), tp, overlap);
}

/* ---- files as they are in use ---- */

/* A large model on eight ranks with FP8. */
static const char large[] = "# Rules of tensor-parallel overlap: TP8, CP2, 8K, FP8\n"
                            "\n"
                            "# beside GEMMs\n"
                            "qkv_dgrad:\n  method: bulk\n  num_sm: 2\n  cga_size: 2\n"
                            "  set_sm_margin: 0\n\n"
                            "qkv_wgrad:\n  method: bulk\n  num_sm: 24\n  cga_size: 2\n"
                            "  set_sm_margin: 0\n\n"
                            "fc1_dgrad:\n  method: bulk\n  num_sm: 2\n  cga_size: 2\n"
                            "  set_sm_margin: 0\n\n"
                            "fc1_wgrad:\n  method: bulk\n  num_sm: 2\n  cga_size: 2\n"
                            "  set_sm_margin: 0\n\n"
                            "## rings\n"
                            "qkv_fprop:\n  method: ring_exchange\n  aggregate: 1\n\n"
                            "proj_dgrad:\n  method: ring_exchange\n  aggregate: 1\n\n"
                            "fc1_fprop:\n  method: ring_exchange\n  aggregate: 1\n\n"
                            "fc2_dgrad:\n  method: ring_exchange\n  aggregate: 0\n\n"
                            "# parts\n"
                            "proj_fprop:\n  method: pipeline\n  num_sm: 24\n  cga_size: 2\n"
                            "  num_splits: 4\n  set_sm_margin: 1\n  fp8_buf: 1\n\n"
                            "fc2_fprop:\n  method: pipeline\n  num_sm: 16\n  cga_size: 2\n"
                            "  num_splits: 4\n  set_sm_margin: 1\n  fp8_buf: 1\n";

static void load_large(void)
{
    lap_tp_overlap_t o;
    char text[128];
    if (!tap_success(load(large, 8, &o), "ten rules of a large model"))
        return;
    const lap_tp_rule_t *r = o.rules;
    tap_ok(r[LAP_QKV_DGRAD].method == LAP_TP_BULK && r[LAP_QKV_DGRAD].num_sm == 2 &&
               r[LAP_QKV_DGRAD].cga_size == 2 && r[LAP_QKV_DGRAD].set_sm_margin == 0,
           "bulk with its fields");
    tap_ok(r[LAP_QKV_WGRAD].num_sm == 24 && r[LAP_FC1_WGRAD].num_sm == 2, "each its own");
    tap_ok(r[LAP_FC1_FPROP].aggregate == 1 && r[LAP_FC2_DGRAD].aggregate == 0, "aggregate 1 and 0");
    tap_ok(r[LAP_FC1_FPROP].num_sm == 1 && r[LAP_FC1_FPROP].num_splits == 8,
           "what is not named has its default");
    tap_ok(r[LAP_PROJ_FPROP].fp8_buf == 1 && r[LAP_PROJ_FPROP].num_splits == 4, "a pipeline");
    tap_ok(r[LAP_PROJ_WGRAD].method == LAP_TP_EXTERNAL, "and so has a GEMM that is not named");
    tap_ok(lap_tp_overlap_unused(&o, "cpu", text, sizeof(text)) == 3 &&
               strcmp(text, "num_sm, cga_size, set_sm_margin") == 0,
           "a CPU has no SMs: %s", text);
    tap_ok(lap_tp_overlap_unused(&o, "cpu", text, 10) == 3 && strlen(text) == 9, "in short: %s",
           text);
}

/* Older GPUs: no clusters. And one whose fc2 is a ring. */
static void load_others(void)
{
    lap_tp_overlap_t o;
    char text[128];
    tap_success(load("qkv_dgrad: {method: bulk, num_sm: 2, set_sm_margin: 0}\n"
                     "proj_fprop: {method: pipeline, num_sm: 4, num_splits: 4, set_sm_margin: 0}\n"
                     "fc2_fprop:\n  method: ring_exchange\n  num_sm: 1\n  set_sm_margin: 1\n",
                     4, &o),
                "flow style, and a ring that reduces");
    tap_ok(o.rules[LAP_FC2_FPROP].method == LAP_TP_RING_EXCHANGE &&
               o.rules[LAP_FC2_FPROP].is_reduce_scatter == 1,
           "fc2_fprop is a ring");
    tap_success(load("qkv_wgrad: null\nfc1_wgrad: ~\nfc1_dgrad:\n  method: pipeline\n  num_sm: 16\n"
                     "  cga_size: 2\n  num_splits: 4\n  set_sm_margin: true\n  fp8_buf: false\n"
                     "proj_wgrad:\n",
                     2, &o),
                "frozen weights: wgrads that are null, a dgrad that reduces");
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    tap_ok(lap_tp_overlap_describe(&o, LAP_FC1_DGRAD, &desc) == LAP_OK &&
               desc.kind == LAP_GEMM_RS && desc.num_splits == 4,
           "fc1_dgrad is GEMM+RS");
    tap_ok(lap_tp_overlap_describe(&o, LAP_FC1_WGRAD, &desc) == LAP_OK && desc.kind == LAP_GEMM,
           "fc1_wgrad communicates nothing");
    tap_ok(lap_tp_overlap_describe(&o, LAP_QKV_WGRAD, &desc) == LAP_OK &&
               desc.kind == LAP_BULK_RS && strcmp(desc.method, "serial") == 0,
           "qkv_wgrad is serial");
    tap_success(
        load("---\nfc1_dgrad:\n  method: ring_exchange\n  is_reduce_scatter: yes\n...\n", 2, &o),
        "the marks of a document; wgrad is not named");
    tap_ok(lap_tp_overlap_describe(&o, LAP_FC1_WGRAD, &desc) == LAP_OK && desc.kind == LAP_GEMM,
           "and has nothing to do");
    tap_ok(o.rules[LAP_FC1_WGRAD].method == LAP_TP_SERIAL, "so that its rule is serial, too");
    tap_success(load("qkv_fprop: {method: auto, num_sm: null}\nproj_dgrad: {method: none}\n"
                     "fc1_fprop: {method: \"serial\"}\n",
                     2, &o),
                "auto, none, serial");
    tap_ok(o.rules[LAP_QKV_FPROP].method == LAP_TP_AUTO && o.rules[LAP_QKV_FPROP].num_sm == 1 &&
               o.rules[LAP_PROJ_DGRAD].method == LAP_TP_SERIAL &&
               o.rules[LAP_FC1_FPROP].method == LAP_TP_SERIAL,
           "are what they say");
    tap_success(load("qkv_fprop:\n  num_splits: 2\n  use_ce: On\n  comm_priority: -5\n"
                     "  gemm_priority: -1\n  atomic_gemm: False\n"
                     "  pipeline_rs_overlap_first_gemm: 0\n",
                     2, &o),
                "a rule without a method keeps the default one");
    tap_ok(lap_tp_overlap_unused(&o, "cuda", text, sizeof(text)) == 3 &&
               strcmp(text, "num_splits, gemm_priority, pipeline_rs_overlap_first_gemm") == 0,
           "a GPU does some of it anyway: %s", text);
    tap_ok(lap_tp_overlap_unused(&o, "ref", text, sizeof(text)) == 5, "a CPU does not: %s", text);
}

/* ---- anchors ---- */

static void load_anchors(void)
{
    lap_tp_overlap_t o;
    const lap_tp_rule_t *r = o.rules;
    if (tap_success(load("qkv_fprop: &ring\n  method: ring_exchange\n  num_sm: &few 3\n"
                         "  aggregate: 1\nfc1_fprop: *ring\nproj_dgrad:\n  aggregate: 0\n"
                         "  <<: *ring\nproj_fprop: {method: pipeline, num_sm: *few}\n"
                         "qkv_wgrad: &off null\nfc1_wgrad: *off\n",
                         4, &o),
                    "anchors and aliases of fields, of values and of null; << merges fields")) {
        tap_ok(r[LAP_FC1_FPROP].method == LAP_TP_RING_EXCHANGE && r[LAP_FC1_FPROP].num_sm == 3 &&
                   r[LAP_FC1_FPROP].aggregate == 1,
               "an alias has all fields");
        tap_ok(r[LAP_PROJ_DGRAD].method == LAP_TP_RING_EXCHANGE &&
                   r[LAP_PROJ_DGRAD].aggregate == 0 && r[LAP_PROJ_DGRAD].num_sm == 3,
               "what is named counts, whether it is before << or behind it");
        tap_ok(r[LAP_PROJ_FPROP].num_sm == 3 && r[LAP_PROJ_FPROP].method == LAP_TP_PIPELINE,
               "a value");
        tap_ok(r[LAP_FC1_WGRAD].method == LAP_TP_SERIAL, "null");
    }
    if (tap_success(load("proj_fprop: &a {method: pipeline, num_splits: 2}\n"
                         "fc2_fprop: &b {num_sm: 7, num_splits: 4}\n"
                         "fc1_dgrad: &c {<<: [*a, *b], cga_size: 2}\n"
                         "qkv_dgrad: {<<: *c}\n",
                         2, &o),
                    "a list of aliases, and fields that were merged themselves")) {
        tap_ok(r[LAP_FC1_DGRAD].method == LAP_TP_PIPELINE && r[LAP_FC1_DGRAD].num_splits == 2 &&
                   r[LAP_FC1_DGRAD].num_sm == 7,
               "the first that names a field counts");
        tap_ok(r[LAP_QKV_DGRAD].num_splits == 2 && r[LAP_QKV_DGRAD].cga_size == 2 &&
                   r[LAP_QKV_DGRAD].num_sm == 7 && r[LAP_QKV_DGRAD].is_reduce_scatter == 1,
               "and all are passed on");
    }
    if (tap_success(load("proj_fprop: &a {num_sm: 5}\nfc2_fprop: &a {num_sm: 6}\n"
                         "fc2_dgrad: *a\nproj_dgrad: {<<: *a, num_sm: null}\n",
                         2, &o),
                    "an anchor of the same name")) {
        tap_ok(r[LAP_FC2_DGRAD].num_sm == 6, "takes the place of the one before");
        tap_ok(r[LAP_PROJ_DGRAD].num_sm == 1, "null is the default, not what is merged");
    }
    tap_ok(lap_tp_overlap_parse("text", "fc2_fprop: {num_sm: 5}\nand", 23, 2, &o) == LAP_OK &&
               r[LAP_FC2_FPROP].num_sm == 5,
           "text of so many bytes");
    tap_failure(lap_tp_overlap_parse("text", "\nfc2", 4, 2, &o), LAP_ERR_INVALID,
                "text:2: this is not a mapping", NULL);
    tap_failure(lap_tp_overlap_parse(NULL, "", 0, 2, &o), LAP_ERR_INVALID, "name is NULL", NULL);
    tap_failure(lap_tp_overlap_parse("text", NULL, 0, 2, &o), LAP_ERR_INVALID, "text is NULL",
                NULL);
    tap_failure(lap_tp_overlap_parse("text", "", 0, 2, NULL), LAP_ERR_INVALID, "overlap_p is NULL",
                NULL);
}

/* As many as there may be, and one more: a GEMM to a line, eight to a GEMM. */
static void load_many_anchors(void)
{
    static const char *const fields[] = {"num_sm", "cga_size", "num_splits", "aggregate",
                                         "use_ce", "fp8_buf",  "method",     "set_sm_margin"};
    lap_tp_overlap_t o;
    char text[8192] = "";
    size_t used = 0;
    for (int i = 0; i < 64; i++) {
        const char *gemm = lap_tp_gemm_name((lap_tp_gemm_t)(i / 8));
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s%s: &a%d null%s",
                                 i % 8 ? ", " : gemm, i % 8 ? "" : ": {", fields[i % 8], i,
                                 i % 8 == 7 ? "}\n" : "");
    }
    tap_success(load(text, 4, &o), "64 anchors");
    snprintf(text + used, sizeof(text) - used, "fc2_wgrad: &a64 null\n");
    tap_failure(load(text, 4, &o), LAP_ERR_INVALID, ":9:", "more than 64 anchors", NULL);
    snprintf(text + used, sizeof(text) - used, "fc2_wgrad: &a63 null\n");
    tap_success(load(text, 4, &o), "one of them anew");
}

/* ---- mistakes ---- */

typedef struct mistake {
    const char *text, *line, *word, *other;
} mistake_t;

static const mistake_t mistakes[] = {
    {"qkv_fprop:\n  method: bulk\nqkv_frop:\n  method: bulk\n",
     ":2:", "method of qkv_fprop is bulk", "expected serial, ring_exchange or auto"},
    {"\n\nqkv_frop:\n  method: bulk\n", ":3:", "unknown key 'qkv_frop'", "'qkv_fprop'?"},
    {"lm_head:\n  method: bulk\n", ":1:", "unknown key 'lm_head'", "expected one of qkv_fprop,"},
    {"fc1_wgrad:\n  method: bulk\n  num_sms: 2\n", ":3:", "unknown field 'num_sms' of fc1_wgrad",
     "'num_sm'?"},
    {"fc2_fprop:\n  method: pipeline\n  num_split: 4\n", ":3:", "'num_split'", "'num_splits'?"},
    {"fc2_fprop:\n  method: pipelined\n", ":2:", "unknown method 'pipelined' of fc2_fprop",
     "'pipeline'?"},
    {"fc2_fprop:\n  method: userbuffers\n", ":2:", "unknown method",
     "one of serial, ring_exchange"},
    {"fc2_fprop:\n  method: [pipeline]\n", ":2:", "a method of fc2_fprop is a list or a mapping",
     ""},
    {"fc2_fprop:\n  [method]: pipeline\n", ":2:", "a field of fc2_fprop is a list or a mapping",
     ""},
    {"? {a: b}\n: c\n", ":1:", "a key is a list or a mapping", ""},
    {"fc2_fprop:\n  num_sm: many\n", ":2:", "num_sm of fc2_fprop is 'many'", "1 to 1024"},
    {"fc2_fprop:\n  num_sm: '4'\n", ":2:", "num_sm of fc2_fprop is '4'", "a whole number"},
    {"fc2_fprop:\n  num_sm: 4.5\n", ":2:", "'4.5'", "a whole number"},
    {"fc2_fprop:\n  num_sm: 0\n", ":2:", "'0'", "1 to 1024"},
    {"fc2_fprop:\n  num_sm: 99999999999999999999\n", ":2:", "'99999999999999999999'", "1 to 1024"},
    {"fc2_fprop:\n  num_sm:\n    - 4\n", ":3:", "is a list or a mapping", "a whole number"},
    {"fc2_fprop:\n  aggregate: 2\n", ":2:", "aggregate of fc2_fprop is '2'", "false or true"},
    {"fc2_fprop:\n  aggregate: maybe\n", ":2:", "'maybe'", "0 or 1"},
    {"fc2_fprop:\n  comm_priority: 3\n", ":2:", "'3'", "-5 to 0"},
    {"fc2_fprop:\n  num_sm: \"a\\u001b[31m\\0b\"\n", ":2:", "'a?[31m?b'", "whole number"},
    {"\"qkv_fprop\\0\":\n  num_sm: 4\n", ":1:", "unknown key 'qkv_fprop?'", "'qkv_fprop'?"},
    {"fc1_fprop:\n  method: pipeline\n", ":2:", "method of fc1_fprop is pipeline",
     "this GEMM gathers its input"},
    {"fc2_dgrad: {method: bulk}\n", ":1:", "method of fc2_dgrad is bulk", "expected"},
    {"fc2_wgrad: {method: bulk}\n", ":1:", "method of fc2_wgrad is bulk",
     "serial, external or auto"},
    {"fc1_dgrad: {method: external}\n", ":1:", "is external",
     "ring_exchange, pipeline, bulk or auto"},
    {"fc1_dgrad: {method: pipeline}\nfc1_wgrad: {method: bulk}\n",
     ":2:", "fc1_wgrad is bulk, but fc1_dgrad reduces by itself (pipeline)", "expected null"},
    {"qkv_wgrad: {method: bulk}\n\nqkv_dgrad: {method: ring_exchange}\n",
     ":1:", "qkv_wgrad is bulk, but qkv_dgrad reduces by itself (ring_exchange)", "expected null"},
    {"proj_fprop: {method: pipeline, is_reduce_scatter: 0}\n",
     ":1:", "is_reduce_scatter of proj_fprop is 0", "expected 1"},
    {"fc1_fprop:\n  method: ring_exchange\n  aggregate: 1\n", ":2:", "aggregate of fc1_fprop is 1",
     "3 ranks"},
    {"fc1_fprop:\n  num_sm: 1\nfc2_fprop:\nfc1_fprop:\n  num_sm: 2\n",
     ":4:", "fc1_fprop is there twice", "first in line 1"},
    {"fc1_fprop:\n  num_sm: 1\n  num_sm: 2\n", ":3:", "num_sm of fc1_fprop is there twice",
     "first in line 2"},
    {"fc1_fprop: ring_exchange\n", ":1:", "fc1_fprop is not a mapping", "'method: ring_exchange'"},
    {"fc1_fprop: []\n", ":1:", "fc1_fprop is not a mapping", "or null"},
    {"- fc1_fprop\n", ":1:", "this is not a mapping", "'qkv_fprop:'"},
    {"just words\n", ":1:", "this is not a mapping", ""},
    {"", ":1:", "the file is empty", ""},
    {"# nothing but this\n", ":1:", "the file is empty", ""},
    {"---\n...\n", ":2:", "this is not a mapping", ""},
    {"fc1_fprop: {num_sm: 1}\n---\nfc2_fprop: {num_sm: 1}\n", ":2:", "a second YAML document", ""},
    {"fc1_fprop: {num_sm: 1}\nfc2_fprop: *a\n", ":2:", "the alias *a has no anchor", "marked &a"},
    {"fc1_fprop: &a {num_sm: 1,\n <<: *a}\n", ":2:", "the alias *a has no anchor", ""},
    {"fc1_fprop: {<<: *a}\n", ":1:", "the alias *a has no anchor", ""},
    {"qkv_fprop: &a {method: ring_exchange}\n\nqkv_dgrad: {method: bulk}\nqkv_wgrad: *a\n",
     ":4:", "method of qkv_wgrad is ring_exchange", "expected serial, bulk or auto"},
    {"qkv_fprop: &a {method: ring_exchange}\nqkv_wgrad:\n  num_sm: 1\n  <<: *a\n",
     ":4:", "method of qkv_wgrad is ring_exchange", ""},
    {"fc1_fprop: {num_sm: &n many}\n", ":1:", "'many'", "1 to 1024"},
    {"fc1_fprop: {num_sm: &n 4}\nfc2_fprop:\n  aggregate: *n\n",
     ":3:", "aggregate of fc2_fprop is '4'", "0 or 1"},
    {"fc1_fprop: &a {num_sm: 4}\nfc2_fprop: {num_sm: *a}\n", ":2:", "a list or a mapping", ""},
    {"fc1_fprop: &a {num_sm: 4}\n*a : {num_sm: 4}\n", ":2:", "a key is a list or a mapping", ""},
    {"fc1_fprop: {num_sm: &n 4}\nfc2_fprop: {<<: *n}\n", ":2:", "<< of fc2_fprop is not an alias",
     ""},
    {"fc1_fprop: {<<: {num_sm: 4}}\n", ":1:", "<< of fc1_fprop is not an alias", "such as *name"},
    {"fc1_fprop: &a {num_sm: 4}\nfc2_fprop: {<<: [*a, 4]}\n", ":2:", "is not an alias", ""},
    {"fc1_fprop: &a {num_sm: 4}\nfc2_fprop:\n  <<: *a\n  <<: *a\n",
     ":4:", "<< of fc2_fprop is there twice", "line 3"},
    {"fc1_fprop: &a {num_sm: 4}\nfc2_fprop: &a {num_sm: 4}\nfc1_fprop: *a\n",
     ":3:", "fc1_fprop is there twice", ""},
    {"&a [fc1_fprop, *a]\n", ":1:", "this is not a mapping", ""},
    {"fc1_fprop: &abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklm {num_sm: 4}\n",
     ":1:", "the name of an anchor has 65 characters", "at most 63"},
    {"fc1_fprop:\n\tnum_sm: 1\n", ":2:", "this is not YAML", ""},
    {"fc1_fprop: {num_sm: 1\n", ":2:", "this is not YAML", ""},
    {"fc1_fprop: \"num_sm\n", ":2:", "this is not YAML", ""},
    {"\xff\xfe\xff", ":1:", "this is not YAML", ""},
};

static void load_mistakes(void)
{
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        const mistake_t *m = &mistakes[i];
        lap_tp_overlap_t overlap, before;
        char place[96];
        memset(&before, 0x5a, sizeof(before));
        overlap = before;
        snprintf(place, sizeof(place), "%s%s", path, m->line);
        tap_failure(load(m->text, 3, &overlap), LAP_ERR_INVALID, place, m->word, m->other, NULL);
        tap_ok(memcmp(&overlap, &before, sizeof(before)) == 0, "which writes no rule");
        tap_ok(!strchr(lap_last_error(), '\n'), "one sentence: %s", lap_last_error());
    }
}

/* Nested deeply, long, full of aliases: an error at the first wrong line. */
static void load_monsters(void)
{
    enum { LENGTH = 1 << 20 };
    lap_tp_overlap_t overlap;
    char *text = malloc(LENGTH);
    if (!text)
        return;
    memset(text, '[', LENGTH);
    tap_failure(load_bytes(text, LENGTH, 2, &overlap), LAP_ERR_INVALID, "not a mapping", NULL);
    memset(text, 'x', LENGTH);
    tap_failure(load_bytes(text, LENGTH, 2, &overlap), LAP_ERR_INVALID, path, NULL);
    memset(text, 0, LENGTH);
    tap_failure(load_bytes(text, LENGTH, 2, &overlap), LAP_ERR_INVALID, "not YAML", NULL);
    free(text);
    tap_failure(load("a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
                     "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n",
                     2, &overlap),
                LAP_ERR_INVALID, ":1:", "unknown key 'a'", NULL);
}

static void load_no_files(void)
{
    lap_tp_overlap_t overlap;
    tap_failure(lap_tp_overlap_load("/nowhere/rules.yaml", 2, &overlap), LAP_ERR_SYSTEM,
                "cannot open '/nowhere/rules.yaml'", "No such file", NULL);
    tap_failure(lap_tp_overlap_load(folder, 2, &overlap), LAP_ERR_INVALID, folder, "a directory",
                NULL);
    tap_failure(lap_tp_overlap_load("/dev/null", 2, &overlap), LAP_ERR_INVALID,
                "not a regular file", NULL);
    unlink(path);
    if (mkfifo(path, 0600) == 0) /* nobody writes to it: opening must not wait */
        tap_failure(lap_tp_overlap_load(path, 2, &overlap), LAP_ERR_INVALID, "not a regular file",
                    NULL);
    unlink(path);
    const int fd = open(path, O_WRONLY | O_CREAT, 0000);
    close(fd);
    if (geteuid() == 0)
        tap_skip("root can read every file");
    else
        tap_failure(lap_tp_overlap_load(path, 2, &overlap), LAP_ERR_SYSTEM, "Permission denied",
                    NULL);
    tap_failure(lap_tp_overlap_load(NULL, 2, &overlap), LAP_ERR_INVALID, "path is NULL", NULL);
    tap_failure(lap_tp_overlap_load(path, 2, NULL), LAP_ERR_INVALID, "overlap_p is NULL", NULL);
    tap_failure(lap_tp_overlap_load(path, -1, &overlap), LAP_ERR_INVALID, "tp is -1", NULL);
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof(path), "%s/rules.yaml", folder);
    const int fds = tap_count_fds();
    load_large();
    load_others();
    load_anchors();
    load_many_anchors();
    load_mistakes();
    load_monsters();
    load_no_files();
    tap_ok(tap_count_fds() == fds, "no load leaves a file open, whether it fails or not (%d do)",
           tap_count_fds() - fds);
    unlink(path);
    rmdir(folder);
    return tap_done();
}
