package cli

import (
	"io"
	"maps"
	"slices"
	"time"
)

// replayReport is the report as JSON. Rules and totals have one tally for each set of rules: for the older set, if
// there is one, and for the newer.
type replayReport struct {
	Requests int        `json:"requests"`
	From     *time.Time `json:"from,omitempty"`
	To       *time.Time `json:"to,omitempty"`
	// NewlyLimited counts the requests that only the newer rules limit; absent without older rules.
	NewlyLimited *int               `json:"newly_limited,omitempty"`
	Skipped      map[string]int     `json:"skipped"`
	Dropped      int                `json:"dropped"` // requests that the tap left out
	Sampled      bool               `json:"sampled"`
	Total        replaySets[tally]  `json:"total"`
	Rules        []replayRule       `json:"rules"`
	Unmatched    replaySets[uint64] `json:"unmatched"`
	// MostLimited are the descriptors that are limited most often; with older rules, those that are newly limited most
	// often.
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

// eachSet returns the result of of for the newer rules and for the older ones.
func eachSet[T any](r *replayer, of func(*replaySet) T) (both replaySets[T]) {
	both.New = of(r.sets[len(r.sets)-1])
	if len(r.sets) == 2 {
		old := of(r.sets[0])
		both.Old = &old
	}
	return both
}

// writeJSON prints the report as one JSON object.
func (r *replayer) writeJSON(w io.Writer, top int) {
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
	writeJSON(w, report)
}

// ruleNames returns the names of the rules of all sets, in order.
func (r *replayer) ruleNames() []string {
	names := map[string]*tally{}
	for _, s := range r.sets {
		maps.Copy(names, s.tallies)
	}
	return slices.Sorted(maps.Keys(names))
}

// tallyOf returns the tally of a rule, zero if the rule decided nothing.
func (s *replaySet) tallyOf(name string) tally {
	if t := s.tallies[name]; t != nil {
		return *t
	}
	return tally{}
}
