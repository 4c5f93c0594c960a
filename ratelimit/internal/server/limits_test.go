package server

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/shared/must"
)

// minuteStart is the beginning of the minute that the examples of testdata/limits.txt count from.
const minuteStart = 1699999980

// limitExample is one block of testdata/limits.txt: what begins with an empty store.
type limitExample struct {
	first         int // number of its first row
	escaped, stop bool
	steps         []limitStep
}

// limitStep is a reload, or a request with its answer.
type limitStep struct {
	line  int
	rules string // of a reload; the others are empty then

	number, descriptors string
	at                  int64 // µs
	hits                int64
	answers             []string
	counters            map[string]string
	headers             []string // nil: whatever they are
}

var columns = regexp.MustCompile(`\s{2,}`)

// readLimitExamples reads testdata/limits.txt, which describes its own format.
func readLimitExamples(t testing.TB) []*limitExample {
	t.Helper()
	text, err := os.ReadFile("testdata/limits.txt")
	must.Succeed(t, err)
	_, body, _ := strings.Cut(string(text), "\n\n")
	skipped := strings.Count(string(text), "\n") - strings.Count(body, "\n")
	var all []*limitExample
	for i, line := range strings.Split(body, "\n") {
		line = strings.TrimRight(line, " ")
		fields := columns.Split(line, -1)
		switch last := len(all) - 1; {
		case line == "" || line[0] >= 'A' && line[0] <= 'Z': // a heading
		case slices.Contains([]string{"rules", "escaped", "stop"}, fields[0]):
			e := &limitExample{escaped: fields[0] == "escaped", stop: fields[0] == "stop"}
			e.steps = []limitStep{{rules: fields[1]}}
			all = append(all, e)
		case fields[0] == "then":
			all[last].steps = append(all[last].steps, limitStep{rules: fields[1]})
		case line[0] == ' ': // a header
			s := &all[last].steps[len(all[last].steps)-1]
			s.headers = append(s.headers, strings.TrimSpace(line))
		default:
			if len(fields) != 5 {
				t.Fatalf("testdata/limits.txt:%d: %d columns in %q", skipped+i+1, len(fields), line)
			}
			all[last].steps = append(all[last].steps, readLimitStep(t, skipped+i+1, fields))
		}
	}
	for _, e := range all {
		e.first, _ = strconv.Atoi(e.steps[1].number)
	}
	return all
}

func readLimitStep(t testing.TB, line int, fields []string) limitStep {
	t.Helper()
	s := limitStep{line: line, number: fields[0], at: instant(t, fields[1]), counters: map[string]string{}}
	at := strings.LastIndexByte(fields[2], ' ')
	hits, err := strconv.ParseInt(fields[2][at+1:], 10, 64)
	if err != nil {
		t.Fatalf("testdata/limits.txt:%d: %v", line, err)
	}
	s.descriptors, s.hits, s.answers = fields[2][:at], hits, strings.Split(fields[3], " / ")
	for c := range strings.SplitSeq(fields[4], "; ") {
		key, value, _ := strings.Cut(c, " = ")
		s.counters[key] = value
	}
	return s
}

// instant reads minutes:seconds of the examples' minute, or @Unix seconds, in µs.
func instant(t testing.TB, text string) int64 {
	t.Helper()
	unix, minutes := strings.CutPrefix(text, "@")
	base := 0.0
	if !minutes {
		m, s, ok := strings.Cut(text, ":")
		n, err := strconv.Atoi(m)
		if !ok || err != nil {
			t.Fatalf("%q is no time", text)
		}
		base, unix = float64(minuteStart+60*n), s
	}
	s, err := strconv.ParseFloat(unix, 64)
	must.Succeed(t, err)
	return int64(base)*1_000_000 + int64(math.Round(s*1_000_000))
}

// TestLimits runs the examples of testdata/limits.txt through a real gRPC server on each store.
func TestLimits(t *testing.T) {
	examples := readLimitExamples(t)
	seen := map[string]bool{}
	for _, e := range examples {
		for _, s := range e.steps {
			seen[s.number] = true
		}
	}
	for n := 5; n <= 83; n++ {
		if !seen[strconv.Itoa(n)] {
			t.Errorf("example %d is missing", n)
		}
	}
	for _, b := range timedBackends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			clock := &testClock{}
			store := b.open(t, clock)
			for _, e := range examples {
				t.Run(fmt.Sprint(e.first), func(t *testing.T) { runLimitExample(t, &store, clock, e) })
			}
		})
	}
}

// runLimitExample runs one block. The time of a server is not the test's: where a key may have expired in between, it
// begins again.
func runLimitExample(t *testing.T, store *timedStore, clock *testClock, e *limitExample) {
	for range 100 {
		store.empty(t)
		if wrong, late := tryLimitExample(t, store, clock, e); !late {
			for _, w := range wrong {
				t.Error(w)
			}
			return
		}
	}
	t.Error("the machine is too slow")
}

func tryLimitExample(t *testing.T, store *timedStore, clock *testClock, e *limitExample) (wrong []string, late bool) {
	o := service.Options{Store: store.Store, Clock: clock.time, DraftHeaders: true}
	o.RetryAfter, o.StopWhenOver = true, e.stop
	lo := limits.Options{EscapedKeys: e.escaped}
	r := newRig(t, o, lo, "  "+e.steps[0].rules)
	before := map[string]string{} // the counters
	for _, s := range e.steps[1:] {
		if s.rules != "" {
			r.load(t, lo, "  "+s.rules)
			continue
		}
		clock.set(s.at)
		in := req("d", s.descriptors)
		for _, d := range in.Descriptors {
			d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(uint64(max(s.hits, -s.hits))), s.hits < 0
		}
		began := time.Now()
		got := r.ask(t, in)
		held := store.keep(t)
		took := time.Since(began)
		differ := func(what string, want, got any) {
			if d := cmp.Diff(want, got); d != "" {
				wrong = append(wrong, fmt.Sprintf("testdata/limits.txt:%d, example %s: %swant (-), got (+):\n%s",
					s.line, s.number, what, d))
			}
		}
		differ("", s.answers, briefly(got, s.answers))
		counters := map[string]string{}
		for key, h := range r.hits(t, in, s.at) {
			state := h.State
			if text, ok := s.counters[key]; ok && h.Algorithm != counter.FixedWindow {
				state = readState(t, &h, text)
				written := text != before[key]
				before[key] = text
				late = late || store.nodes != nil && written && h.Algorithm == counter.TokenBucket &&
					time.Duration(state.At-s.at)*time.Microsecond <= took
			}
			counters[key] = store.holds(t, &h, state, s.counters[key], s.at, held)
		}
		differ("counters: ", s.counters, counters)
		if s.headers == nil {
			continue
		}
		var headers []string
		for _, h := range got.ResponseHeadersToAdd {
			headers = append(headers, h.Key+": "+h.Value)
		}
		differ("headers: ", s.headers, headers)
	}
	return wrong, late
}

// hits are the counters of a request's limits by their keys.
func (r *rig) hits(t testing.TB, in *pb.RateLimitRequest, at int64) map[string]counter.Hit {
	t.Helper()
	var wire rls.Request
	fromProto(&wire, in)
	rules, all := r.service.Rules(), map[string]counter.Hit{}
	for _, d := range wire.Descriptors {
		rule := rules.Domain("d").Find(d.Entries)
		if rule == nil {
			t.Fatalf("no rule for %v", d)
		}
		for _, l := range append([]*limits.Rule{rule}, rule.Further...) {
			start, end := l.Span(at / 1_000_000)
			key := rules.AppendKey(nil, l, "d", d.Entries, start)
			all[string(key)] = counter.Hit{Key: key, PerSecond: l.Unit == rls.Second, End: end, Meter: counter.Meter{
				Algorithm: l.Algorithm, Limit: uint64(l.PerUnit), Burst: uint64(l.Burst), Window: end - start}}
		}
	}
	return all
}

// readState reads the state of a counter as testdata/limits.txt writes it.
func readState(t testing.TB, h *counter.Hit, text string) (s counter.State) {
	t.Helper()
	if h.Algorithm == counter.TokenBucket {
		full, rest, _ := strings.Cut(text, " + ")
		n, _ := strconv.Atoi(rest)
		return counter.State{At: instant(t, full), Rest: uint32(n)}
	}
	if _, err := fmt.Sscan(text, &s.At, &s.Current, &s.Previous); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	s.At += minuteStart / h.Window
	return s
}

// holds is text if the counter is in the state that text stands for, else what it is.
func (s *timedStore) holds(t testing.TB, h *counter.Hit, state counter.State, text string, at int64,
	held map[string]string) string {
	t.Helper()
	must.Succeed(t, s.Peek(t.Context(), h))
	if h.Algorithm == counter.FixedWindow {
		return strconv.FormatInt(h.After, 10)
	}
	meter, now := h.Meter, state
	meter.Load(&now, at)
	stored, there := held[string(h.Key)]
	want := *h
	want.State = state
	switch {
	case text == "":
	case h.After != meter.Used(&now) || h.State != now && !meter.Empty(&now):
	case s.nodes == nil || stored == raw(&want) || !there && meter.Empty(&now):
		return text
	}
	return fmt.Sprintf("%d used, %+v, stored as %q", h.After, h.State, stored)
}

// briefly writes the statuses as wanted does: the limit only where that names one.
func briefly(r *pb.RateLimitResponse, wanted []string) []string {
	var out []string
	over := pb.RateLimitResponse_OK
	for i, s := range r.Statuses {
		text := "OK " + strconv.Itoa(int(s.LimitRemaining))
		if s.Code != pb.RateLimitResponse_OK {
			text, over = "OVER", s.Code
			if s.LimitRemaining > 0 {
				text += fmt.Sprintf(" but %d remain", s.LimitRemaining)
			}
		}
		if i < len(wanted) && strings.Contains(wanted[i], " of ") {
			if s.CurrentLimit.GetName() != "" {
				text += " " + s.CurrentLimit.Name
			}
			text += fmt.Sprintf(" of %d %s", s.CurrentLimit.GetRequestsPerUnit(), s.CurrentLimit.GetUnit())
		}
		out = append(out, text+fmt.Sprintf(", %d s", s.DurationUntilReset.GetSeconds()))
	}
	if r.OverallCode != over {
		out = append(out, "overall "+r.OverallCode.String())
	}
	return out
}
