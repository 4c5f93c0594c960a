package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/shared/must"
)

const replayOld = `domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: path, value: /login, descriptors: [{key: ip, rate_limit: {unit: minute, requests_per_unit: 1}}]}
  - {key: free}
`

const replayNew = `domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: token_bucket}}
  - key: search
    rate_limits: [{unit: second, requests_per_unit: 10}, {unit: minute, requests_per_unit: 1, algorithm: sliding_window}]
  - {key: free}
`

// tapAt is a line of /tap for descriptors in the form "user=ann|path=/x,ip=1", at a second of the minute.
func tapAt(second float64, descriptors string) string {
	at := time.Unix(1699999980, 0).Add(time.Duration(second * float64(time.Second))).UTC().Format(time.RFC3339Nano)
	var list []string
	for d := range strings.SplitSeq(descriptors, "|") {
		var entries []string
		for pair := range strings.SplitSeq(d, ",") {
			key, value, _ := strings.Cut(pair, "=")
			entries = append(entries, fmt.Sprintf(`{"key":%q,"value":%q}`, key, value))
		}
		list = append(list, `{"entries":[`+strings.Join(entries, ",")+`],"code":"OK"}`)
	}
	return fmt.Sprintf(`{"at":%q,"domain":"shop","code":"OK","hits":1,"sample":1,"descriptors":[%s]}`+"\n", at,
		strings.Join(list, ","))
}

// runReplay replays a recording by rules, and by older ones unless those are empty.
func runReplay(t *testing.T, newer, older, recording string, flags ...string) (status int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"new.yaml": newer, "old.yaml": older, "recording": recording} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	args := []string{"ratelimit", "replay", "-rules", filepath.Join(dir, "new.yaml")}
	if older != "" {
		args = append(args, "-against", filepath.Join(dir, "old.yaml"))
	}
	args = append(append(args, flags...), filepath.Join(dir, "recording"))
	var out, errs strings.Builder
	status = (Program{}).run(t.Context(), args, nil, &out, &errs)
	return status, out.String(), errs.String()
}

// For pipelines: a report as JSON, and an exit status by the share of requests that are newly limited.
func TestReplay_pipeline(t *testing.T) {
	recording := tapAt(0, "user=ann") + tapAt(1, "user=ann") + tapAt(2, "user=ann") + tapAt(3, "user=bob")
	f := func(want int, wantErr, older string, flags ...string) string {
		t.Helper()
		status, out, errs := runReplay(t, replayNew, older, recording, flags...)
		if status != want || !strings.Contains(errs, wantErr) || wantErr == "" && errs != "" {
			t.Errorf("exit status %d, want %d: %s", status, want, errs)
		}
		return out
	}
	over := "1 of 4 requests (25.00 %) are newly limited, more than 24.9 %"
	f(exitFailed, over, replayOld, "-fail-above", "24.9")
	f(exitOK, "", replayOld, "-fail-above", "25")
	f(exitUsage, "usage:", "", "-fail-above", "25") // with nothing to compare with
	f(exitUsage, "usage:", replayOld, "-fail-above", "101")
	f(exitUsage, "usage:", replayOld, "-fail-above", "NaN")
	f(exitUsage, "usage:", replayOld, "-format", "yaml")
	want := `{"requests":4,"from":"2023-11-14T22:13:00Z","to":"2023-11-14T22:13:03Z","newly_limited":1,` +
		`"skipped":{"broken":0,"cut":0,"late":0,"overtaken":0},"dropped":0,"sampled":false,` +
		`"total":{"old":{"requests":4,"hits":4,"passed":4,"limited":0},` +
		`"new":{"requests":4,"hits":4,"passed":3,"limited":1}},` +
		`"rules":[{"rule":"shop.user","old":{"requests":4,"hits":4,"passed":4,"limited":0},` +
		`"new":{"requests":4,"hits":4,"passed":3,"limited":1}}],` +
		`"unmatched":{"old":0,"new":0},"most_limited":[{"descriptor":"shop user=ann","times":1}]}`
	var got bytes.Buffer
	must.Succeed(t, json.Compact(&got, []byte(f(exitFailed, over, replayOld, "-format", "json", "-fail-above", "24.9"))))
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Errorf("want (-), got (+):\n%s", d)
	}
	alone := f(exitOK, "", "", "-format", "json", "-top", "0")
	if strings.Contains(alone, "old") || strings.Contains(alone, "newly") ||
		!strings.Contains(alone, `"most_limited": []`) {
		t.Error(alone)
	}
}

func TestReplay(t *testing.T) {
	f := func(newer, older, recording, want string, flags ...string) {
		t.Helper()
		status, got, errs := runReplay(t, newer, older, recording, flags...)
		if status != exitOK || errs != "" {
			t.Errorf("exit status %d: %s", status, errs)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("want (-), got (+):\n%s", d)
		}
	}
	recording := tapAt(10, "user=ann") + tapAt(10, "user=ann") + tapAt(11, "user=ann|path=/login,ip=1") +
		tapAt(12, "user=bob|search=x") + tapAt(13, "search=x|free=1") + tapAt(41, "user=ann") + tapAt(60, "user=ann")
	f(replayNew, replayOld, recording, `requests: 7, from 2023-11-14T22:13:10Z to 2023-11-14T22:14:00Z

rule                 set   requests  hits  passed  limited
all requests         old   7         10    6       1
                     new   7         10    4       3
                     diff  0         0     -2      +2
shop.path_/login.ip  old   1         1     1       0
                     new   0         0     0       0
                     diff  -1        -1    -1      0
shop.search          old   0         0     0       0
                     new   2         2     1       1
                     diff  +2        +2    +1      +1
shop.user            old   6         6     5       1
                     new   6         6     4       2
                     diff  0         0     -1      +1
unmatched            old   2
                     new   1
                     diff  -1

most often newly limited
2  shop user=ann
1  shop search=x
`)
	f(replayOld, "", recording, `requests: 7, from 2023-11-14T22:13:10Z to 2023-11-14T22:14:00Z

rule                 requests  hits  passed  limited
all requests         7         10    6       1
shop.path_/login.ip  1         1     1       0
shop.user            6         6     5       1
unmatched            2

most often limited
1  shop user=ann
`)
	f(replayOld, "", "",
		"requests: 0\n\nrule          requests  hits  passed  limited\nall requests  0         0     0       0\n"+
			"unmatched     0\n")

	// Requests as /json takes them: own limits, hits of both kinds, refunds, peeks, and texts that need quotes.
	const at = `{"at":"2023-11-14T22:13:10.5Z","domain":"shop",`
	f(replayOld, "", at+`"hitsAddend":2,"descriptors":[{"entries":[{"key":"user","value":"a\u001b,b"}]}]}
`+at+`"hits_addend":2,"descriptors":[{"entries":[{"key":"user","value":"a\u001b,b"}]}]}
`+at+`"descriptors":[{"entries":[{"key":"user","value":"a\u001b,b"}],"isNegativeHits":true,"hitsAddend":4}]}
`+at+`"descriptors":[{"entries":[{"key":"user","value":"a\u001b,b"}],"hitsAddend":"3"},{"entries":[{"key":"user","value":"a\u001b,b"}],"hitsAddend":"0"}]}
`+at+`"descriptors":[{"entries":[{"key":"other","value":"1"}],"limit":{"requestsPerUnit":1,"unit":"HOUR"},"hitsAddend":"2"}]}
{"at":"2023-11-14T22:13:10.5Z","domain":"mall","code":"OK","hits":7,"sample":1,"descriptors":[`+
		`{"entries":[{"key":"k","value":"v"}],"own_limit":{"requests_per_unit":7,"unit":"DAY"},"code":"OK"},`+
		`{"entries":[{"key":"k","value":"v"}],"code":"OK","unmatched":"unknown_domain"},`+
		`{"entries":[{"key":"k","value":"v"}],"own_limit":{"requests_per_unit":7,"unit":"DAY"},"hits":7,"refund":true,"code":"OK"}]}
`, `requests: 6, from 2023-11-14T22:13:10.5Z to 2023-11-14T22:13:10.5Z

rule                       requests  hits  passed  limited
all requests               6         23    4       2
mall (limits of requests)  2         7     2       0
shop (limits of requests)  1         2     0       1
shop.user                  5         7     4       1
unmatched                  1

most often limited
1  shop other=1
`, "-top", "1")
}

// TestReplay_lines: lines up to 5 s late are sorted, and what is skipped is counted.
func TestReplay_lines(t *testing.T) {
	f := func(recording string, parts ...string) {
		t.Helper()
		status, got, errs := runReplay(t, replayOld, "", recording)
		if status != exitOK || errs != "" {
			t.Errorf("exit status %d: %s", status, errs)
		}
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("no %q in:\n%s", part, got)
			}
		}
	}
	// In the order of the file the fourth would pass: a new minute begins with the third.
	f(tapAt(58, "user=a")+tapAt(59, "user=a")+tapAt(61, "user=a")+tapAt(59.5, "user=a")+tapAt(57, "user=a"),
		"requests: 5,",
		"shop.user     5         5     4       1\n", "from 2023-11-14T22:13:57Z to 2023-11-14T22:14:01Z\n")
	f(tapAt(10, "user=a")+tapAt(15, "user=a")+tapAt(10, "user=a")+tapAt(9.999, "user=a")+tapAt(30, "user=a")+
		tapAt(15, "user=a"),
		"requests: 4,", "lines skipped: 0 broken, 0 cut, 2 more than 5 s out of order\n")
	whole := tapAt(10, "user=a")
	f(whole[:40]+"\n\n \n"+strings.Replace(whole, `"sample":1`, `"sample":1,"cut":true`, 1)+"{\"dropped\":12}\n"+
		"null\n[]\n{}\n"+`{"domain":"shop"}`+"\n"+`{"at":"yesterday"}`+"\n"+
		`{"at":"1969-12-31T23:59:59Z","domain":"shop","code":"OK","descriptors":[]}`+"\n"+
		strings.Repeat("x", maxRecordedLine+1)+"\n"+strings.TrimSpace(whole),
		"requests: 1,", "lines skipped: 8 broken, 1 cut, 0 more than 5 s out of order\n",
		"the tap left out 12 requests: counters miss them, so that limited is underestimated\n")
	f(strings.Replace(whole, `"sample":1`, `"sample":0.5`, 1),
		"requests: 1,",
		"the recording is a sample: counters miss the other requests, so that limited is underestimated\n")
	f(strings.Replace(whole, `"domain":"shop"`, `"domain":""`, 1), "requests: 0\n", "lines skipped: 1 broken,")
}

// TestRecording_held: however many lines come at one time, few wait for earlier ones.
func TestRecording_held(t *testing.T) {
	line := tapAt(10, "user=a")
	const waiting = 20
	var b strings.Builder
	for i := range 1000 {
		b.WriteString(tapAt(10+float64(i)/1000, "user=a"))
	}
	b.WriteString(line + tapAt(10.990, "user=b"))
	r := newRecording(strings.NewReader(b.String()))
	r.maxHeld = waiting * len(line)
	var last time.Time
	n, most := 0, 0
	for {
		one, err := r.next()
		if err == io.EOF {
			break
		}
		if err != nil || one.at.Before(last) {
			t.Fatalf("%v after %v, %v", one.at, last, err)
		}
		last = one.at
		n, most = n+1, max(most, len(r.waiting))
	}
	if s := r.skipped; n != 1001 || s.overtaken != 1 || s.late != 0 || r.held != 0 || most > waiting+1 {
		t.Errorf("%d requests, %+v, %d bytes held at the end, at most %d lines", n, s, r.held, most)
	}
}

func TestReplay_usage(t *testing.T) {
	f := func(want string, newer, older string, flags ...string) {
		t.Helper()
		status, out, errs := runReplay(t, newer, older, "", flags...)
		if status != exitUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("exit status %d, %q, %q; no %q", status, out, errs, want)
		}
	}
	f(`new.yaml:2:`, "domain: d\ndescriptors: [{key: k, rate_limt: 1}]", "")
	f(`old.yaml:2:`, replayNew, "domain: d\ndescriptors: [{key: k, rate_limt: 1}]")
	f("not from standard input", replayNew, "", "-rules", "-")
	f("no such file", replayNew, "", "-rules", "/none.yaml")
	f("no such file", replayNew, "", "-against", "/none")
	f("usage: ratelimit replay", replayNew, "", "-top", "-1")
	f("usage: ratelimit replay", replayNew, "", "one", "two")
	f("usage: ratelimit replay", replayNew, "", "-rules", "")

	rules := filepath.Join(t.TempDir(), "rules.yaml")
	must.Succeed(t, os.WriteFile(rules, []byte(replayNew), 0o666))
	for _, recording := range []string{"/none", filepath.Dir(rules)} {
		var out, errs strings.Builder
		if status := (Program{}).run(t.Context(), []string{"ratelimit", "replay", "-rules", rules, recording},
			nil, &out, &errs); status != exitUsage || out.Len() > 0 || !strings.Contains(errs.String(), recording) {
			t.Errorf("exit status %d, %q, %q", status, out.String(), errs.String())
		}
	}
}

// FuzzReplay: whatever a recording holds, each line is a request that is decided or is counted as skipped, and a
// request that was recorded is read again from the line that the tap would write for it.
func FuzzReplay(f *testing.F) {
	f.Add([]byte(tapAt(10, "user=ann|path=/login,ip=1") + tapAt(9, "user=ann")))
	f.Add([]byte(`{"at":"2023-11-14T22:13:10.5Z","domain":"shop","hitsAddend":2,"descriptors":[{"entries":[{"key":"user","value":"x"}]}]}`))
	rules, _, err := rulefile.Load(f.Context(), []rulefile.File{{Name: "new.yaml", Text: []byte(replayNew)}},
		limits.Options{Settings: limits.Settings{NearRatio: 0.8}})
	must.Succeed(f, err)
	f.Fuzz(func(t *testing.T, text []byte) {
		lines, dropped := 0, 0
		for line := range strings.SplitSeq(string(text), "\n") {
			if line = strings.TrimSpace(line); line == "" {
				continue
			}
			lines++
			one, err := parseRecorded([]byte(line))
			if _, ok := err.(droppedLine); ok {
				dropped++
			}
			if err == nil {
				checkTapLine(t, rules, one)
			}
		}
		r := newReplayer([]*limits.Rules{rules, rules})
		must.Succeed(t, r.run(t.Context(), strings.NewReader(string(text))))
		if s := r.recording.skipped; r.requests+s.broken+s.cut+s.late+s.overtaken+dropped != lines {
			t.Errorf("%d requests and %+v of %d lines", r.requests, s, lines)
		}
		if len(r.limited) > 0 {
			t.Error("the same rules limit more")
		}
		if d := cmp.Diff(r.sets[0].tallies, r.sets[1].tallies, cmp.AllowUnexported(tally{})); d != "" {
			t.Error(d)
		}
		var out strings.Builder
		r.write(&out, 20)
		for name, counted := range r.sets[1].tallies {
			if counted.passed+counted.limited != counted.requests ||
				!strings.Contains(out.String(), visibleRule(name)) {
				t.Errorf("%s: %+v in\n%s", name, counted, out.String())
			}
		}
	})
}

// checkTapLine reads a request again from the tap of a daemon that decides it.
func checkTapLine(t *testing.T, rules *limits.Rules, want recorded) {
	t.Helper()
	set := newReplaySet(rules)
	listener, err := set.service.Observer().Listen(observe.Filter{Sample: 1, Rate: 1})
	must.Succeed(t, err)
	if set.decide(t.Context(), &want) != nil || listener.Dropped() > 0 {
		return
	}
	if len(listener.Lines()) == 0 {
		t.Fatalf("the tap shows nothing of %+v", want)
	}
	got, err := parseRecorded(<-listener.Lines())
	if err == errCutLine {
		return
	}
	want.request.HitsAddend, want.sampled = max(want.request.HitsAddend, 1), false
	if err != nil || !got.at.Equal(want.at) {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	if d := cmp.Diff(textOf(&want.request), textOf(&got.request)); d != "" {
		t.Errorf("want (-), got (+):\n%s", d)
	}
}

func textOf(r *rls.Request) string {
	text := fmt.Sprintf("%q %d", r.Domain, r.HitsAddend)
	for _, d := range r.Descriptors {
		text += fmt.Sprintf("\n%q %v %v %d %v %v", d.Entries, d.HasLimit, d.Limit, d.Hits, d.HasHits, d.Negative)
	}
	return text
}
