package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/server"
)

// ownLimits is appended to a domain's name. The result names, in the report, the limits that requests for the domain
// contain themselves. It cannot be taken for a rule's path, which has no space at that place.
const ownLimits = " (limits of requests)"

// write prints the report as text. top bounds the number of limited descriptors that it lists.
func (r *replayer) write(w io.Writer, top int) {
	fmt.Fprintf(w, "requests: %d", r.requests)
	if r.requests > 0 {
		fmt.Fprintf(w, ", from %s to %s", r.from.UTC().Format(time.RFC3339Nano), r.to.UTC().Format(time.RFC3339Nano))
	}
	fmt.Fprintln(w)
	if s := r.recording.skipped; s.broken+s.cut+s.late+s.overtaken > 0 {
		fmt.Fprintf(w, "lines skipped: %d broken, %d cut, %d more than 5 s out of order", s.broken, s.cut, s.late)
		if s.overtaken > 0 {
			fmt.Fprintf(w, ", %d more than %d MiB", s.overtaken, maxHeld>>20)
		}
		fmt.Fprintln(w)
	}
	if r.recording.sampled {
		fmt.Fprintln(w,
			"the recording is a sample: counters miss the other requests, so that limited is underestimated")
	}
	if n := r.recording.skipped.dropped; n > 0 {
		fmt.Fprintf(w, "the tap left out %d requests: counters miss them, so that limited is underestimated\n", n)
	}
	fmt.Fprintln(w)
	r.writeTallies(w)
	r.writeLimited(w, top)
}

// writeTallies prints the table of rules: for the rules of all sets, a row for each set and for the difference.
func (r *replayer) writeTallies(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	set := ""
	if len(r.sets) == 2 {
		set = "\tset"
	}
	fmt.Fprintf(t, "rule%s\trequests\thits\tpassed\tlimited\n", set)
	r.writeRows(t, "all requests", func(s *replaySet) tally { return s.total })
	for _, name := range r.ruleNames() {
		r.writeRows(t, visibleRule(name), func(s *replaySet) tally { return s.tallyOf(name) })
	}
	if len(r.sets) == 2 {
		was, is := r.sets[0].unmatched, r.sets[1].unmatched
		fmt.Fprintf(t, "unmatched\told\t%d\n\tnew\t%d\n\tdiff\t%s\n", was, is, difference(was, is))
	} else {
		fmt.Fprintf(t, "unmatched\t%d\n", r.sets[0].unmatched)
	}
	t.Flush()
}

// visibleRule returns the name of a rule in a form that is safe to print on a terminal.
func visibleRule(name string) string {
	if domain, own := strings.CutSuffix(name, ownLimits); own {
		return server.Visible(domain) + ownLimits
	}
	return server.Visible(name)
}

func (r *replayer) writeRows(w io.Writer, name string, of func(*replaySet) tally) {
	if len(r.sets) == 1 {
		t := of(r.sets[0])
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", name, t.requests, t.hits, t.passed, t.limited)
		return
	}
	was, is := of(r.sets[0]), of(r.sets[1])
	fmt.Fprintf(w, "%s\told\t%d\t%d\t%d\t%d\n", name, was.requests, was.hits, was.passed, was.limited)
	fmt.Fprintf(w, "\tnew\t%d\t%d\t%d\t%d\n", is.requests, is.hits, is.passed, is.limited)
	fmt.Fprintf(w, "\tdiff\t%s\t%s\t%s\t%s\n", difference(was.requests, is.requests), difference(was.hits, is.hits),
		difference(was.passed, is.passed), difference(was.limited, is.limited))
}

// difference returns the number is minus the number was, with a plus or minus sign.
func difference(was, is uint64) string {
	switch {
	case is > was:
		return fmt.Sprintf("+%d", is-was)
	case is < was:
		return fmt.Sprintf("-%d", was-is)
	}
	return "0"
}

// mostLimited returns the texts of the descriptors that were limited most often, at most top.
func (r *replayer) mostLimited(top int) []string {
	list := slices.SortedFunc(maps.Keys(r.limited), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.limited[b], r.limited[a]), strings.Compare(a, b))
	})
	return list[:min(top, len(list))]
}

// writeLimited prints the descriptors that were limited most often, at most top.
func (r *replayer) writeLimited(w io.Writer, top int) {
	list := r.mostLimited(top)
	if len(list) == 0 {
		return
	}
	how := "limited"
	if len(r.sets) == 2 {
		how = "newly limited"
	}
	fmt.Fprintf(w, "\nmost often %s\n", how)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, d := range list {
		fmt.Fprintf(t, "%d\t%s\n", r.limited[d], d)
	}
	t.Flush()
}

// descriptorText returns a domain and a descriptor in the form of the flag -descriptors, safe to print on a terminal.
// Different descriptors have different texts.
func descriptorText(domain string, entries []rls.Entry) string {
	text := server.Visible(domain)
	if len(entries) > 0 {
		text += " " + server.VisibleEntries(entries)
	}
	return text
}

// replayReport is the report as JSON. Rules and totals have a tally for each set of rules: the newer set and, if there
// is one, the older.
type replayReport struct {
	Requests int        `json:"requests"`
	From     *time.Time `json:"from,omitempty"`
	To       *time.Time `json:"to,omitempty"`
	// NewlyLimited is the number of requests that only the newer rules limit; absent if there are no older rules.
	NewlyLimited *int               `json:"newly_limited,omitempty"`
	Skipped      map[string]int     `json:"skipped"`
	Dropped      int                `json:"dropped"` // number of requests that the tap has left out
	Sampled      bool               `json:"sampled"`
	Total        replaySets[tally]  `json:"total"`
	Rules        []replayRule       `json:"rules"`
	Unmatched    replaySets[uint64] `json:"unmatched"`
	// MostLimited are the descriptors that were limited most often. With older rules, they are those that only the
	// newer rules limit.
	MostLimited []replayLimited `json:"most_limited"`
}

type replaySets[T any] struct {
	Old *T `json:"old,omitempty"`
	New T  `json:"new"`
}

type replayRule struct {
	Rule string `json:"rule"`
	replaySets[tally]
}

type replayLimited struct {
	Descriptor string `json:"descriptor"`
	Times      uint64 `json:"times"`
}

// eachSet calls the function of with the newer set and, if there is one, with the older set, and returns both results.
func eachSet[T any](r *replayer, of func(*replaySet) T) (both replaySets[T]) {
	both.New = of(r.sets[len(r.sets)-1])
	if len(r.sets) == 2 {
		old := of(r.sets[0])
		both.Old = &old
	}
	return both
}

// writeJSON prints the report as one JSON object. top bounds the number of limited descriptors in it.
func (r *replayer) writeJSON(w io.Writer, top int) error {
	s := r.recording.skipped
	report := replayReport{
		Requests: r.requests, Sampled: r.recording.sampled, Dropped: int(s.dropped),
		Skipped: map[string]int{"broken": int(s.broken), "cut": int(s.cut), "late": int(s.late),
			"overtaken": int(s.overtaken)},
		Total:       eachSet(r, func(s *replaySet) tally { return s.total }),
		Unmatched:   eachSet(r, func(s *replaySet) uint64 { return s.unmatched }),
		Rules:       []replayRule{},
		MostLimited: []replayLimited{},
	}
	if r.requests > 0 {
		from, to := r.from.UTC(), r.to.UTC()
		report.From, report.To = &from, &to
	}
	if len(r.sets) == 2 {
		report.NewlyLimited = &r.newly
	}
	for _, name := range r.ruleNames() {
		of := eachSet(r, func(s *replaySet) tally { return s.tallyOf(name) })
		report.Rules = append(report.Rules, replayRule{visibleRule(name), of})
	}
	for _, d := range r.mostLimited(top) {
		report.MostLimited = append(report.MostLimited, replayLimited{d, r.limited[d]})
	}
	return writeJSON(w, report)
}

// ruleNames returns the names of the rules of all sets, sorted.
func (r *replayer) ruleNames() []string {
	names := map[string]*tally{}
	for _, s := range r.sets {
		maps.Copy(names, s.tallies)
	}
	return slices.Sorted(maps.Keys(names))
}

// tallyOf returns the tally of the rule with a name; a zero tally if the rule decided nothing.
func (s *replaySet) tallyOf(name string) tally {
	if t := s.tallies[name]; t != nil {
		return *t
	}
	return tally{}
}
