#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The page of `lap report` in a browser: it loads without an error, says what the trace says, and can be used with a keyboard, in
# light and dark, of one rank and of 64; and what is no trace is refused.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/tap.bash"
limit=120
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
for browser in chromium-headless-shell chromium google-chrome ''; do
    command -v "$browser" >/dev/null 2>&1 && break
done
if [ -z "$browser" ] || ! command -v python3 >/dev/null; then
    echo '1..0 # SKIP there is no Chromium to show pages, or no python3 to look at them'
    exit 77
fi

# What is done with a page once it is there: keys on its timeline, and what comes of them as attributes of the page.
cat >"$work/use.html" <<'USE'
<script>
(async () => {
  const main = document.getElementById('main'), note = (key, value) => { document.documentElement.dataset[key] = value; };
  while (main.getAttribute('aria-busy') !== 'false') await new Promise(done => setTimeout(done, 20));
  const canvas = document.querySelector('#timeline canvas'), detail = document.querySelector('.detail');
  const key = name => canvas.dispatchEvent(new KeyboardEvent('keydown', {key: name, bubbles: true}));
  note('background', getComputedStyle(document.body).backgroundColor);
  if (!canvas) return note('used', 'no');
  canvas.focus();
  note('focused', String(document.activeElement === canvas));
  ['n', 'n'].forEach(key);
  note('second', detail.textContent);
  ['ArrowDown', '+', '+', 'ArrowRight'].forEach(key);
  note('other', detail.textContent);
  const pressed = document.querySelector('.tools button[aria-pressed]').getAttribute('aria-pressed');
  key('a');
  note('toggled', String(pressed !== document.querySelector('.tools button[aria-pressed]').getAttribute('aria-pressed')));
  const copy = document.createElement('canvas'), colours = new Set();
  copy.width = canvas.width;
  copy.height = canvas.height;
  const g = copy.getContext('2d', {willReadFrequently: true});
  for (let wait = 0; wait < 50 && colours.size <= 5; wait++) { // until it is drawn anew, on a busy machine too
    await new Promise(done => setTimeout(done, 100));
    g.drawImage(canvas, 0, 0);
    const data = g.getImageData(0, 0, canvas.width, canvas.height).data;
    colours.clear();
    for (let i = 0; i < data.length; i += 4 * 37) colours.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
  }
  note('colours', String(colours.size));
  note('used', 'yes');
})();
</script>
USE

# page FILE [dark]: loads it, uses it, and leaves what it is then in $work/dom.
page() {
    local scheme=1
    [ "${2:-}" = dark ] && scheme=0
    cat "$1" "$work/use.html" >"$work/page.html"
    timeout 100 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --window-size=1300,1000 \
        --virtual-time-budget=20000 --blink-settings=preferredColorScheme=$scheme --enable-logging=stderr --dump-dom \
        "file://$work/page.html" >"$work/dom" 2>"$work/console"
}

# holds NAME CODE: the code, in which `dom` is the page as it was drawn, raises nothing.
holds() {
    ok "$1" python3 -c "
import re, sys
dom = open(sys.argv[1], encoding='utf-8').read()
dom = re.sub(r'<script.*?</script>', '', dom, flags=re.S)
console = [line for line in open(sys.argv[2], errors='replace') if 'CONSOLE' in line]
root = dict(re.findall(r'data-(\w+)=\"([^\"]*)\"', re.search(r'<html[^>]*>', dom)[0]))
def text(id): # of a section
    return re.sub(r'\s+', ' ', re.sub(r'<[^>]*>', ' ', re.search(r'<section id=\"' + id + r'\".*?</section>', dom, re.S)[0]))
def loads():
    assert 'failed' not in root and not console, (root, console)
    assert root.get('used') == 'yes' and root['focused'] == 'true' and root['toggled'] == 'true', root
    assert int(root['colours']) > 5, root
$2" "$work/dom" "$work/console" || grep CONSOLE "$work/console" | head -n 5 | sed 's/^/# /'
}

lap train --auto=no --tp 2 --num-replicas 2 --heads 4 --head-dim 8 --seq 32 --layers 2 --iters 3 --batch 4 --link 20MB/s \
    --trace "$work/a.json.gz" --report "$work/run.html"
is 'a training with a page of it: status 0' $status 0
lap report -o "$work/a.html" "$work/a.json.gz"
is 'a page of its trace: status 0' $status 0
ok '... is the same page' cmp "$work/run.html" "$work/a.html"
ok '... and needs nothing from elsewhere' test "$(grep -cE '(src|href)=|@import|url\(|fetch\(' "$work/a.html")" = 0
# A page without scripts is one in a frame that may not run any. Its picture and its table are those of the trace.
echo '<iframe sandbox src=a.html width=980 height=540></iframe>' >"$work/frame.html"
timeout 100 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --window-size=1000,560 \
    --screenshot="$work/frame.png" "file://$work/frame.html" >/dev/null 2>&1
ok '... shows bars of each kind without a script' python3 - "$work/frame.png" <<'PY'
import struct, sys, zlib
data, at, body = open(sys.argv[1], "rb").read(), 8, b""
while at < len(data):
    size, kind = struct.unpack(">I4s", data[at:at + 8])
    if kind == b"IHDR":
        width, height, depth, colour = struct.unpack(">IIBB", data[at + 8:at + 18])
    body += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
    at += 12 + size
step, raw = {2: 3, 6: 4}[colour], zlib.decompress(body)
assert depth == 8
row, line, counts = bytearray(width * step), width * step + 1, {}
for y in range(height):
    how, now = raw[y * line], bytearray(raw[y * line + 1:(y + 1) * line])
    for i in range(width * step if how else 0):
        a, b, c = now[i - step] if i >= step else 0, row[i], row[i - step] if i >= step else 0
        near = min((a, b, c), key=lambda v: abs(a + b - c - v))
        now[i] = (now[i] + (0, a, b, (a + b) // 2, near)[how]) & 255
    row = now
    for x in range(0, len(now), step):
        counts[bytes(now[x:x + 3])] = counts.get(bytes(now[x:x + 3]), 0) + 1
for name, wanted in (("computing", "0072b2"), ("hidden", "009e73"), ("exposed", "d55e00")):
    assert counts.get(bytes.fromhex(wanted), 0) > 50, (name, len(counts))
PY
ok '... with a table by rank of what the trace has' python3 - "$work/a.html" "$work/a.json.gz" <<'PY'
import gzip, json, re, sys
page, trace = open(sys.argv[1], encoding="utf-8").read(), json.load(gzip.open(sys.argv[2]))
page = re.search(r"<noscript>(.*?)</noscript>", page, re.S)[1]
rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", page)
lanes = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name" and "compute" in e["args"]["name"]}
def joined(of):
    whole = []
    for begin, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X" and of(e)):
        if whole and begin <= whole[-1][1]:
            whole[-1][1] = max(end, whole[-1][1])
        else:
            whole.append([begin, end])
    return whole
assert [row[0] for row in rows] == ["rank 0 tp0 dp0", "rank 1 tp1 dp0", "rank 2 tp0 dp1", "rank 3 tp1 dp1", "mean"], rows
for r in range(4):
    busy = joined(lambda e: e["pid"] == r and (r, e["tid"]) in lanes and e["cat"] in ("gemm", "reduce", "copy", "kernel"))
    comm = joined(lambda e: e["pid"] < 4 and e["cat"] == "link" and r in (e["pid"], e["args"]["peer"]))
    hidden = sum(max(0, min(b[1], c[1]) - max(b[0], c[0])) for b in busy for c in comm)
    time, total = (sum(end - begin for begin, end in list) for list in (busy, comm))
    for told, right in zip(rows[r][1:], (time, total, hidden, total - hidden)):
        assert abs(float(told) - right / 1e3) < .002 + .000002 * len(busy + comm), (r, rows[r], time, total, hidden)
PY
page "$work/a.html"
holds '... it loads without an error and can be used with a keyboard' 'loads()'
holds '... says what cost most, in three sentences with advice' '
costs = re.findall(r"<li>(.*?)</li>", dom, re.S)
assert len(costs) == 3 and all("ms" in c and c.count(".") >= 2 for c in costs), costs'
holds '... has communication of both kinds and of all GEMMs that have any' '
assert "tp: tensor parallel" in text("kinds") and "dp: gradients between replicas" in text("kinds")
for name in ("qkv_fprop ag_gemm", "fc2_fprop gemm_rs", "fc1_wgrad bulk_rs", "gradients buckets"):
    assert name in text("gemms"), text("gemms")'
holds '... who waited for whom, the critical path, contention, memory and the loss' '
assert "rank 3 tp1 dp1" in text("waits")
assert "on a link" in text("path") and "GEMM" in text("path")
assert text("contention")
for chart in ("memory", "loss"):
    assert re.search(r"<section id=.%s.*?<path d=.M[0-9. ]+" % chart, dom, re.S), chart'
holds '... a slice tells its time, and that of another lane something else' '
assert " ms from " in root["second"] and " ms from " in root["other"] and root["second"] != root["other"], root'
light=$(grep -o 'data-background="[^"]*"' "$work/dom")
page "$work/a.html" dark
holds 'dark: it loads' 'loads()'
ok '... and is another page than in the light' test "$light" != "$(grep -o 'data-background="[^"]*"' "$work/dom")"

lap bench ag 64 64 64 --ranks 2 --iters 1 --warmup 0 --link 10MB/s --trace "$work/b.json" --timeline-method serial
lap report --output "$work/b.html" "$work/b.json"
page "$work/b.html"
holds 'a page of a call of lap bench loads, without what it has not' '
loads()
assert "id=\"loss\"" not in dom and "AG+GEMM serial" in dom'
lap bench ag 64 64 64 --ranks 2 --iters 1 --warmup 0 --link 20MB/s --trace "$work/c.json" --timeline-method ring --method ring
lap report --output "$work/bc.html" "$work/b.json" "$work/c.json"
is 'two traces: status 0' $status 0
page "$work/bc.html"
holds '... are compared' '
loads()
assert "Two traces compared" in dom and "exposed, tensor parallel" in text("costs")
assert "AG+GEMM serial" in dom and "AG+GEMM ring" in dom'

lap plan --model llama-8b --gpus 32 --global-batch 32 --tp 2 --pp 4 --cp 1 --virtual-pp 4 --micro-batch 1 --trace "$work/plan.json"
lap report -o "$work/plan.html" "$work/plan.json"
page "$work/plan.html"
holds 'a page of a planned step: a pipeline has advice of its own, and replicas are a kind of communication' '
loads()
assert "Ranks of a pipeline wait for each other: more micro-batches or more stages on a rank" in dom
assert "replicas (gradients between replicas): " in dom and "Send gradients in bfloat16" in dom
assert "pp: pipeline parallel" in dom and "dp: gradients between replicas" in dom
assert "another method for this GEMM" not in re.sub("(?s)<script.*?</script>", "", dom)'

# 64 ranks with 1500 slices each.
python3 - "$work/many.json" <<'EOP'
import json, sys
events = [{"ph": "M", "pid": 99999, "tid": 0, "name": "process_name", "args": {"name": "critical path"}},
          {"ph": "i", "pid": -1, "tid": "x", "name": "of another program", "args": None}]
for r in range(64):
    events.append({"ph": "M", "pid": r, "tid": 0, "name": "process_name", "args": {"name": "rank %d tp%d" % (r, r)}})
    for tid, name in ((100, "compute"), (300, "receive"), (2000, "link")):
        events.append({"ph": "M", "pid": r, "tid": tid, "name": "thread_name", "args": {"name": name}})
    for i in range(500):
        about = {"call": "qkv_fprop", "op": "ag_gemm ring", "kind": "tp", "peer": (r + 1) % 64}
        events.append({"ph": "X", "pid": r, "tid": 100, "cat": "gemm", "name": "qkv_fprop", "ts": 10 * i, "dur": 8 - i % 2,
                       "args": dict(about, m=64, n=64, k=64, tflops=.07 + .001 * (i % 2))})
        events.append({"ph": "X", "pid": r, "tid": 2000, "cat": "link", "name": "put", "ts": 10 * i + 5, "dur": 4,
                       "args": dict(about, bytes=4096, gbs=1)})
        events.append({"ph": "X", "pid": r, "tid": 300, "cat": "wait", "name": "wait", "ts": 10 * i, "dur": 6,
                       "args": {"call": "qkv_fprop", "from": (r + 1) % 64, "kind": "tp"}})
about = {"version": "0", "command": "lap train", "title": "64 ranks", "measured": {"ranks": 64, "dropped": 7, "clocks": []}}
json.dump({"traceEvents": events, "lapstrake": about}, open(sys.argv[1], "w"))
EOP
lap report -o "$work/many.html" "$work/many.json"
page "$work/many.html"
holds '64 ranks: the page loads, and says that records were dropped' '
loads()
assert "The first 16 of 64 ranks." in dom and "7 records had no room" in dom and "id=\"heat\"" in dom and "tp0" in text("waits")'

# ---- what is no trace ----

refused() {
    local name=$1 words=$2
    shift 2
    lap report -o "$work/no.html" "$@"
    is "$name: refused" "$status $([ -e "$work/no.html" ] && echo written)" '2 '
    has '... and says why' "$(<"$work/err")" "$words"
}
echo '{"traceEvents": []}' >"$work/other.json"
refused 'a trace of others' 'has no member "lapstrake"' "$work/other.json"
echo '{"traceEvents": [], "lapstrake": {"version": "1"}}' >"$work/nothing.json"
refused 'a trace of nothing' 'neither "measured" nor "simulated"' "$work/nothing.json"
echo '{"traceEvents": [], "lapstrake": [1]}' >"$work/list.json"
refused 'a list about it' 'expected {' "$work/list.json"
echo '{"traceEvents": [{"ph": "X", "ts": 1}], "lapstrake": {"measured": {}}}' >"$work/slice.json"
refused 'a slice without a length' 'expected ts and dur before the end of a slice' "$work/slice.json"
echo '{"traceEvents": [{}, {}' >"$work/cut.json"
refused 'a file that was cut' 'byte 24: expected , or ]' "$work/cut.json"
echo '{"traceEvents": [1, 2], "lapstrake": {}}' >"$work/numbers.json"
refused 'numbers in place of events' 'byte 17: expected {' "$work/numbers.json"
head -c 2000 "$work/a.json.gz" >"$work/cut.json.gz"
{ head -c 2000 "$work/a.json.gz"; printf 'zzzzzzzz'; tail -c +2009 "$work/a.json.gz"; } >"$work/bad.json.gz"
refused 'a compressed file with other bytes in it' 'is damaged: ' "$work/bad.json.gz"
LAP_ZLIB=$work/none refused 'no zlib' "LAP_ZLIB is '$work/none', expected the library zlib" "$work/a.json.gz"
refused 'a compressed file that was cut' 'is damaged: it ends too early' "$work/cut.json.gz"
sed 's/"dur":[0-9.]*/"dur":-5/' "$work/b.json" >"$work/negative.json"
refused 'a time that is negative' 'expected a number, 0 or above, of microseconds' "$work/negative.json"
sed '0,/"ts":[0-9.]*/s//"ts":"soon"/' "$work/b.json" >"$work/word.json"
refused 'a time that is a word' 'expected a number, 0 or above, of microseconds' "$work/word.json"
refused 'a folder' "$work" "$work"
cp "$work/a.json.gz" "$work/own.json.gz"
mkdir "$work/in"
lap report -o "$work/in/../own.json.gz" "$work/own.json.gz"
is 'the page does not take the place of its trace' "$status $(cmp "$work/a.json.gz" "$work/own.json.gz")" '2 '
has '... and says why' "$(<"$work/err")" 'own.json.gz is a trace and the output; expected two files'
lap report -o "$work/none/page.html" "$work/a.json.gz"
is 'a page that cannot be written: status 1, as the help says' "$status $(<"$work/err")" \
    "1 lap report: -o: cannot write the report $work/none/page.html: No such file or directory"
lap train --tp 2 --heads 2 --seq 8 --iters 1 --trace "$work/in/both" --report "$work/./in/both"
is 'a trace and a page in one file are refused' "$status $(ls "$work/in")" '2 '
has '... with a sentence' "$(<"$work/err")" '--trace and --report are both' 'expected two files'
lap bench ag 8 8 8 --ranks 2 --trace "$work/in/both" --timeline "$work/in/both"
is 'and so are a trace and a timeline' "$status $(ls "$work/in")" '2 '
finish
