#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_tests.sh BUILD [ARGUMENT of ctest...]: runs the tests of a build, and says last how many were skipped, and why. Ends
# with the status of ctest; in continuous integration (CI is set) a test that was skipped is one that failed.
set -u
build=$1
shift
report=Testing/report.xml # in the build
rm -f "$build/$report"
ctest --test-dir "$build" --output-on-failure --no-tests=error --output-junit "$report" "$@"
status=$?
[ -f "$build/$report" ] || exit $status

# A reason is what stands behind the last # SKIP of a test's output or, without one, its last line.
awk '
    function plain(text) {
        gsub(/&lt;/, "<", text)
        gsub(/&gt;/, ">", text)
        gsub(/&quot;/, "\"", text)
        gsub(/&apos;/, "\047", text)
        gsub(/&amp;/, "\\&", text)
        return text
    }
    /<testcase / { skipped = said = 0; reason = "it gives no reason" }
    /<skipped message="SKIP_RETURN_CODE/ { skipped = 1 }
    /<system-out>/ { inside = 1; sub(/.*<system-out>/, "") }
    inside {
        line = $0
        sub(/<\/system-out>.*/, "", line)
        gsub(/^[ \t]+|[ \t]+$/, "", line)
        if (match(line, /# SKIP +/)) {
            reason = substr(line, RSTART + RLENGTH)
            said = 1
        } else if (line != "" && !said) {
            reason = line
        }
    }
    /<\/system-out>/ { inside = 0 }
    /<\/testcase>/ && skipped {
        all++
        if (!counts[reason]++)
            order[++reasons] = reason
    }
    END {
        if (!all)
            exit 0
        printf "\n%d %s skipped:\n", all, all == 1 ? "test was" : "tests were"
        for (i = 1; i <= reasons; i++)
            printf "%6d  %s\n", counts[order[i]], plain(order[i])
        exit 1
    }
' "$build/$report" && exit $status
case ${CI:-} in
'' | 0 | false) exit $status ;;
esac
echo "run_tests: CI is set, and so every test has to run"
exit 1
