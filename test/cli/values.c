/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of options, good and bad, and how arguments are sorted. The messages of the parsers
 * are caught in a file, so that each can be asked for the value it complains about.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli.h"
#include "peak.h"
#include "tap.h"
#include "train.h"

enum { RANKS, JSON_FLAG, NOPTIONS };

static const lap_option_t options[NOPTIONS] = {
    [RANKS] = {'n', "ranks", "P", "ranks", "4", LAP_BY_CODE},
    [JSON_FLAG] = {0, "json", NULL, "as JSON", NULL, LAP_BY_CODE},
};

static const lap_command_t command = {
    .name = "lap test",
    .usage = "A B",
    .summary = "Tests.",
    .options = options,
    .noptions = NOPTIONS,
    .min_positionals = 1,
    .max_positionals = 3,
};

static int caught = -1;

/* Checks that a parser has refused `value`, with a sentence that names it and what it expected. */
static void refused(bool accepted, const char *value, const char *expected)
{
    char text[1024] = "", quoted[256];
    ssize_t count = pread(caught, text, sizeof(text) - 1, 0);
    text[count > 0 ? count : 0] = '\0';
    snprintf(quoted, sizeof(quoted), "'%s'", value);
    bool told = strncmp(text, "lap test: --x is ", 17) == 0 && strstr(text, quoted) &&
                strstr(text, expected) && strchr(text, '\n') == text + strlen(text) - 1;
    if (!tap_ok(!accepted && told, "'%s' is refused with a sentence", value))
        tap_note("accepted: %d, said: %s", accepted, text);
    if (ftruncate(caught, 0) != 0 || lseek(caught, 0, SEEK_SET) != 0)
        tap_ok(false, "the file for messages can be emptied");
}

static void test_sizes(void)
{
    static const char *bad[] = {"",   "-1",  "+1",   " 1",   "1 ",  "K",
                                "1T", "1KB", "1.5K", "0x10", "ten", "17179869184G"};
    size_t size = 7;
    tap_ok(lap_arg_size(&command, "--x", "2048", 1, SIZE_MAX, &size) && size == 2048, "2048");
    tap_ok(lap_arg_size(&command, "--x", "64K", 1, SIZE_MAX, &size) && size == 65536, "64K");
    tap_ok(lap_arg_size(&command, "--x", "3g", 1, SIZE_MAX, &size) && size == 3ull << 30, "3g");
    tap_ok(lap_arg_size(&command, "--x", "0", 0, 9, &size) && size == 0, "0 where it is allowed");
    size = 7;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refused(lap_arg_size(&command, "--x", bad[i], 0, SIZE_MAX, &size), bad[i], "at least 0");
    static const char huge[] = "99999999999999999999";
    refused(lap_arg_size(&command, "--x", huge, 0, SIZE_MAX, &size), huge, "at least 0");
    refused(lap_arg_size(&command, "--x", "0", 1, SIZE_MAX, &size), "0", "at least 1");
    refused(lap_arg_size(&command, "--x", "1K", 1, 1023, &size), "1K", "1 to 1023");
    tap_ok(size == 7, "a refused size changes nothing");
}

static void test_numbers(void)
{
    int number = 7;
    double seconds = 7;
    tap_ok(lap_arg_int(&command, "--x", "-3", -5, 5, &number) && number == -3, "-3");
    tap_ok(lap_arg_seconds(&command, "--x", "0.25", 0, 1, &seconds) && seconds == 0.25, "0.25");
    refused(lap_arg_int(&command, "--x", "6", -5, 5, &number), "6", "from -5 to 5");
    refused(lap_arg_int(&command, "--x", "5000000000", -5, 5, &number), "5000000000", "from -5");
    refused(lap_arg_seconds(&command, "--x", "1.5", 0, 1, &seconds), "1.5", "from 0 to 1");
    refused(lap_arg_seconds(&command, "--x", "inf", 0, 1, &seconds), "inf", "seconds");
    tap_ok(number == -3 && seconds == 0.25, "refused numbers change nothing");
}

static void test_choices(void)
{
    static const char *const names[] = {"serial", "ring", "fused", NULL};
    size_t index = 7;
    tap_ok(lap_arg_choice(&command, "--x", "fused", names, &index) && index == 2, "fused");
    refused(lap_arg_choice(&command, "--x", "rign", names, &index), "rign",
            "expected serial, ring or fused; did you mean 'ring'?");
    refused(lap_arg_choice(&command, "--x", "tree", names, &index), "tree",
            "serial, ring or fused\n");
    refused(lap_arg_choice(&command, "--x", "", names, &index), "", "serial, ring or fused\n");
    tap_ok(index == 2, "a refused choice changes nothing");
}

static void test_lists(void)
{
    lap_list_t list;
    tap_ok(lap_arg_list(&command, "--x", "a,bc,d", &list) && list.count == 3, "a,bc,d");
    tap_ok(strcmp(list.items[0], "a") == 0 && strcmp(list.items[1], "bc") == 0 &&
               strcmp(list.items[2], "d") == 0,
           "its items");
    tap_ok(lap_arg_list(&command, "--x", "one", &list) && list.count == 1, "one");
    static const char *bad[] = {"", ",", "a,", ",a", "a,,b"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refused(lap_arg_list(&command, "--x", bad[i], &list), bad[i],
                "expected 1 to 32 names of 1 to");
    char many[2 * (LAP_LIST_MAX + 1)] = "";
    for (size_t i = 0; i < LAP_LIST_MAX; i++)
        memcpy(many + 2 * i, "a,", 2);
    many[2 * LAP_LIST_MAX] = 'a';
    refused(lap_arg_list(&command, "--x", many, &list), many, "1 to 32 names");
    many[2 * LAP_LIST_MAX - 1] = '\0';
    tap_ok(lap_arg_list(&command, "--x", many, &list) && list.count == LAP_LIST_MAX, "32 items");
    char wide[LAP_LIST_TEXT + 1];
    memset(wide, 'w', LAP_LIST_TEXT);
    wide[LAP_LIST_TEXT] = '\0';
    refused(lap_arg_list(&command, "--x", wide, &list), wide, "1 to 63 characters");
    tap_ok(list.count == LAP_LIST_MAX, "a refused list changes nothing");
}

static bool near(double value, double expected)
{
    return fabs(value - expected) <= 1e-12 * fabs(expected);
}

static void test_links(void)
{
    static const struct {
        const char *text;
        double rate, latency, ratio;
    } good[] = {
        {"2GB/s", 2e9, 0, 0},        {"500MB/s", 5e8, 0, 0},   {"2.5GB/s,5us", 2.5e9, 5e-6, 0},
        {".5TB/s", 5e11, 0, 0},      {"7B/s,1ns", 7, 1e-9, 0}, {"3kB/s,0us", 3e3, 0, 0},
        {"3KB/s,2ms", 3e3, 2e-3, 0}, {"ratio:0.4", 0, 0, 0.4}, {"ratio:1.5,1s", 0, 1, 1.5},
    };
    static const char *bad[] = {
        "",       "2",       "GB/s",       "2GB",           "2gb/s",     "2Gb/s",      "-2GB/s",
        "0GB/s",  "2GB/s,",  "2GB/s,5",    "2GB/s,-5us",    "2GB/s 5us", "0x2GB/s",    "infGB/s",
        "ratio:", "ratio:0", "ratio:-1",   "ratio:x",       "ratio:nan", "ratio:0.4x", "2GB/s,0x5s",
        "5us",    "2 GB/s",  "ratio:.4,5", "2GB/s,5us,1us",
    };
    lap_link_arg_t link;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        tap_ok(lap_arg_link(&command, "--x", good[i].text, &link) &&
                   near(link.link.bytes_per_s, good[i].rate) &&
                   near(link.link.latency_s, good[i].latency) && near(link.ratio, good[i].ratio),
               "%s", good[i].text);
    lap_link_arg_t before = link;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refused(lap_arg_link(&command, "--x", bad[i], &link), bad[i], "2GB/s,5us");
    tap_ok(near(link.ratio, before.ratio), "a refused link changes nothing");
}

/* Parses a line of words; the words must live as long as the arguments. */
static int parse(char *line, lap_args_t *args)
{
    static char *argv[16];
    char *rest = NULL;
    int argc = 0;
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    argv[argc] = NULL;
    return lap_args_parse(&command, argc, argv, args);
}

static bool same(const char *text, const char *expected)
{
    return text && strcmp(text, expected) == 0;
}

static void test_sorting(void)
{
    lap_args_t args;
    char mixed[] = "test ag --ranks 8 -5 --json 3", end[] = "test -n2 -- --json -x";
    char plain[] = "test a", none[] = "test", many[] = "test 1 2 3 4";
    tap_ok(parse(mixed, &args) == LAP_CLI_GO && args.npositionals == 3, "options among the others");
    tap_ok(same(args.positionals[0], "ag") && same(args.positionals[1], "-5") &&
               same(args.positionals[2], "3") && !args.positionals[3],
           "a negative number is no option");
    tap_ok(same(args.values[RANKS], "8") && args.given[RANKS] && args.values[JSON_FLAG],
           "the options");
    tap_ok(parse(end, &args) == LAP_CLI_GO && args.npositionals == 2 &&
               same(args.positionals[0], "--json") && !args.given[JSON_FLAG],
           "after -- nothing is an option");
    tap_ok(same(args.values[RANKS], "2"), "a value joined to its letter");
    tap_ok(parse(plain, &args) == LAP_CLI_GO && same(args.values[RANKS], "4") &&
               !args.given[RANKS] && !args.values[JSON_FLAG],
           "defaults");
    tap_ok(parse(none, &args) == LAP_CLI_USAGE, "too few");
    tap_ok(parse(many, &args) == LAP_CLI_USAGE, "too many");
}

static void test_peaks(void)
{
    const struct {
        const char *name;
        lap_dtype_t dtype;
        double tflops;
    } rows[] = {{"NVIDIA H200", LAP_BFLOAT16, 989.4},
                {"NVIDIA H200", LAP_FLOAT8_E5M2, 1979},
                {"NVIDIA H200", LAP_FLOAT32, 66.9},
                {"NVIDIA H200 NVL", LAP_BFLOAT16, 835.5},
                {"NVIDIA GH200 480GB", LAP_FLOAT16, 989.4},
                {"NVIDIA H20", LAP_BFLOAT16, 148},
                {"NVIDIA H100 PCIe", LAP_BFLOAT16, 756},
                {"NVIDIA H100 80GB HBM3", LAP_BFLOAT16, 989.4},
                {"NVIDIA A100-SXM4-80GB", LAP_BFLOAT16, 312},
                {"NVIDIA A100-SXM4-80GB", LAP_FLOAT8_E4M3, 0},
                {"NVIDIA A10", LAP_FLOAT16, 125},
                {"NVIDIA A10G", LAP_FLOAT16, 0},
                {"NVIDIA L40S", LAP_BFLOAT16, 362},
                {"Tesla T4", LAP_FLOAT16, 65},
                {"fake", LAP_FLOAT32, 0},
                {"", LAP_FLOAT32, 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        tap_ok(lap_peak_tflops(rows[i].name, rows[i].dtype) == rows[i].tflops,
               "the peak of '%s' in %s", rows[i].name, lap_dtype_name(rows[i].dtype));
}

/* Every sample once each time through, and not in the order of another time. */
static void test_orders(void)
{
    static const uint64_t counts[] = {1, 2, 3, 7, 64, 65, 1000, 4097};
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        const uint64_t count = counts[c];
        size_t wrong = 0, same = 0;
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            unsigned char *seen = calloc(count, 1);
            for (uint64_t i = 0; i < count; i++) {
                const uint64_t at = lap_train_shuffled(9, epoch * count + i, count);
                wrong += at / count != epoch || seen[at % count]++ != 0;
                same += at % count == lap_train_shuffled(9, (epoch + 1) * count + i, count) % count;
            }
            free(seen);
        }
        tap_ok(wrong == 0, "an order of %zu samples has each once", (size_t)count);
        /* One in `count` is where it was, by chance. */
        tap_ok(count < 64 || same < 3 * (3 + 10), "... and is another one each time: %zu stay",
               same);
    }
}

int main(void)
{
    caught = memfd_create("messages", MFD_CLOEXEC);
    if (caught < 0 || dup2(caught, STDERR_FILENO) < 0)
        return 1;
    test_sizes();
    test_numbers();
    test_choices();
    test_lists();
    test_links();
    test_sorting();
    test_peaks();
    test_orders();
    return tap_done();
}
