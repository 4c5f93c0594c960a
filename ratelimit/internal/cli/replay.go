package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
)

// replayMaxKeys bounds the counters of a replay. It is more than fits into memory, so that no counter is dropped before
// its window has ended.
const replayMaxKeys = 1 << 30

// replayer decides recorded requests by one or two sets of rules. Each set has counters of its own.
type replayer struct {
	sets      []*replaySet // the older set, if there is one, and the newer
	recording *recording
	requests  int
	newly     int // number of requests that the newer set limits and the older does not
	from, to  time.Time
	// limited counts the descriptors that the newer set limits and the older, if there is one, does not. The keys are
	// their texts as descriptorText returns them.
	limited map[string]uint64
}

// replaySet is a set of rules with its counters. Its clock shows the time of the recorded request.
type replaySet struct {
	service *service.Service
	now     time.Time
	call    service.Call
	total   tally
	tallies map[string]*tally // by name of the rule
	// unmatched counts the descriptors for which the rules have no answer.
	unmatched uint64
}

// tally counts the requests, or the descriptors of requests, that a rule decides.
type tally struct {
	requests, hits, passed, limited uint64
}

// MarshalJSON implements json.Marshaler.
func (t tally) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"requests":%d,"hits":%d,"passed":%d,"limited":%d}`,
		t.requests, t.hits, t.passed, t.limited), nil
}

func newReplayer(sets []*limits.Rules) *replayer {
	r := &replayer{limited: map[string]uint64{}}
	for _, rules := range sets {
		r.sets = append(r.sets, newReplaySet(rules))
	}
	return r
}

func newReplaySet(rules *limits.Rules) *replaySet {
	s := &replaySet{tallies: map[string]*tally{}}
	s.service = service.New(service.Options{
		Store: memory.New(memory.Options{Settings: memory.Settings{MaxKeys: replayMaxKeys},
			Clock: func() int64 { return s.now.UnixMicro() }}),
		Stats: stats.NewRegistry(stats.Options{}),
		Caps:  service.Caps{Descriptors: math.MaxInt, Entries: math.MaxInt, TextBytes: math.MaxInt},
		Clock: func() time.Time { return s.now },
	})
	s.service.SetRules(rules)
	return s
}

// run decides all requests of the recording in.
func (r *replayer) run(ctx context.Context, in io.Reader) error {
	r.recording = newRecording(in)
	for {
		one, err := r.recording.next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		r.decide(ctx, &one)
	}
}

// decide decides one recorded request by each set of rules. A request that is invalid for one set is invalid for all,
// so it is skipped at the first error.
func (r *replayer) decide(ctx context.Context, one *recorded) {
	for _, s := range r.sets {
		if err := s.decide(ctx, one); err != nil {
			r.recording.skipped.broken++
			return
		}
	}
	if r.requests++; r.requests == 1 {
		r.from = one.at
	}
	r.to = one.at
	for _, s := range r.sets {
		s.count()
	}
	if len(r.sets) == 2 && r.sets[1].refuses() && !r.sets[0].refuses() {
		r.newly++
	}
	for i := range one.request.Descriptors {
		if r.newlyLimited(i) {
			r.limited[descriptorText(one.request.Domain, one.request.Descriptors[i].Entries)]++
		}
	}
}

// newlyLimited reports whether the newer set limits descriptor i of the present request, and the older set, if there is
// one, does not.
func (r *replayer) newlyLimited(i int) bool {
	last := len(r.sets) - 1
	return r.sets[last].limits(i) && !slices.ContainsFunc(r.sets[:last], func(s *replaySet) bool { return s.limits(i) })
}

// limits reports whether descriptor i of the request that was decided last was answered with OVER_LIMIT.
func (s *replaySet) limits(i int) bool { return s.call.Response.Statuses[i].Code == rls.OverLimit }

// refuses reports whether the request that was decided last was answered with OVER_LIMIT as a whole.
func (s *replaySet) refuses() bool { return s.call.Response.Overall == rls.OverLimit }

func (s *replaySet) decide(ctx context.Context, one *recorded) error {
	s.now = one.at
	s.call.Request = one.request
	return s.service.Decide(ctx, &s.call, s.service.Now())
}

// count adds the answer to the request that was decided last to the tallies.
func (s *replaySet) count() {
	request, hits := &s.call.Request, uint64(0)
	domain := s.service.Rules().Domain(request.Domain)
	decided := false
	for i := range request.Descriptors {
		decided = decided || s.call.Rule(i) != nil
	}
	for i := range request.Descriptors {
		d, n := &request.Descriptors[i], request.Taken(i)
		hits = counter.Saturate(hits, n)
		if rule := s.call.Rule(i); rule != nil {
			s.tally(rule).add(n, s.call.Response.Statuses[i].Code)
		} else if domain == nil || domain.Forgotten(d.Entries, decided) {
			s.unmatched++
		}
	}
	s.total.add(hits, s.call.Response.Overall)
}

// tally returns the tally of a rule. Limits that requests contain themselves belong to no rule of the files: all of one
// domain share a tally.
func (s *replaySet) tally(rule *limits.Rule) *tally {
	name := rule.Path(s.call.Request.Domain)
	if name == "" {
		name = s.call.Request.Domain + ownLimits
	}
	t := s.tallies[name]
	if t == nil {
		t = new(tally)
		s.tallies[name] = t
	}
	return t
}

func (t *tally) add(hits uint64, code rls.Code) {
	t.requests++
	t.hits = counter.Saturate(t.hits, hits)
	if code == rls.OverLimit {
		t.limited++
	} else {
		t.passed++
	}
}

const replayUsage = `usage: ratelimit replay -rules NEW [-against OLD [-fail-above PERCENT]] [-format text|json] [-top 20]
       FILE|-
example: ratelimit replay -rules new.yaml -against /etc/ratelimit -fail-above 0.5 recording
`

// replay is the command replay. It decides recorded requests by a set of rules, or by two sets to compare them, and
// prints how many requests each rule would have passed and limited. It returns 0; 1 if more requests than -fail-above
// allows are newly limited; 2 for bad usage, invalid rules or a recording that cannot be read. It contacts no daemon.
func replay(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("replay", replayUsage, stderr)
	newer := flags.String("rules", "", "`file` or folder of the rules to decide by")
	older := flags.String("against", "", "`file` or folder of rules to compare them with")
	top := flags.Int("top", 20,
		"`number` of descriptors to list that are limited most often; with -against, that are newly limited")
	format := flags.String("format", "text", "`format` of the report, text or json")
	failAbove := flags.Float64("fail-above", 100,
		"`percent` of the requests that may be newly limited with -against; more of them is exit status 1")
	var options limits.Options
	mergeFlag(flags, &options.Settings)
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	judged := false
	flags.Visit(func(f *flag.Flag) { judged = judged || f.Name == "fail-above" })
	if flags.NArg() != 1 || *newer == "" || *top < 0 || *format != "text" && *format != "json" ||
		judged && (*older == "" || !(*failAbove >= 0 && *failAbove <= 100)) {
		flags.Usage()
		return exitUsage
	}
	bad := func(err error) int {
		fmt.Fprintf(stderr, "ratelimit replay: %v\n", err)
		return exitUsage
	}
	var sets []*limits.Rules // the older set, if there is one, then the newer
	for _, path := range slices.DeleteFunc([]string{*older, *newer}, func(path string) bool { return path == "" }) {
		rules, ok := loadRules(ctx, "replay", path, options, stderr)
		if !ok {
			return exitUsage
		}
		sets = append(sets, rules)
	}
	in := io.Reader(os.Stdin)
	if flags.Arg(0) != "-" {
		file, err := os.Open(flags.Arg(0))
		if err != nil {
			return bad(err)
		}
		defer file.Close()
		in = file
	}
	r := newReplayer(sets)
	if err := r.run(ctx, in); err != nil {
		return bad(fmt.Errorf("the recording cannot be read: %w", err))
	}
	if *format == "json" {
		if err := r.writeJSON(stdout, *top); err != nil {
			return failed("replay", err, stderr)
		}
	} else {
		r.write(stdout, *top)
	}
	if share := 100 * float64(r.newly) / float64(max(r.requests, 1)); share > *failAbove {
		fmt.Fprintf(stderr, "ratelimit replay: %d of %d requests (%.2f %%) are newly limited, more than %g %%\n",
			r.newly, r.requests, share, *failAbove)
		return exitFailed
	}
	return exitOK
}
