package observe

import (
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

const (
	recentPerSecond = 100     // descriptors that one list takes in a second
	maxRecentText   = 2 << 10 // bytes of a descriptor's texts after which no further entry is copied
)

// Recent keeps the descriptors that were refused last, and the descriptors that no rule matched last.
type Recent struct{ refused, unmatched list }

// newRecent returns a Recent whose lists hold size descriptors; nil, which means off, if size is 0.
func newRecent(size int) *Recent {
	if size == 0 {
		return nil
	}
	return &Recent{list{last: make([]*RecentDescriptor, size)}, list{last: make([]*RecentDescriptor, size)}}
}

// RecentDescriptor is a copy of one descriptor of a decision.
type RecentDescriptor struct {
	At      time.Time   `json:"at"`
	Domain  string      `json:"domain"`
	Entries []rls.Entry `json:"entries"` // invalid UTF-8 is written as \xNN
	// Rule is the dotted path of the rule that refused the descriptor, and File is the rule's file and position.
	Rule  string  `json:"rule,omitempty"`
	File  string  `json:"file,omitempty"`
	Limit *uint32 `json:"limit,omitempty"`
	limits.LimitView
	// Hits is the number of hits that the descriptor took; 0 if it took none or gave hits back.
	Hits  uint64 `json:"hits"`
	Reset *int64 `json:"reset,omitempty"`
	// Outcome is the reason why no rule decided the descriptor.
	Outcome limits.Outcome `json:"outcome,omitempty"`
	// NearestKey is a configured key that the request may have meant. Package service sets it, which has the rules.
	NearestKey string `json:"nearest_key,omitempty"`
	// Cut is set if a text is shorter than in the request.
	Cut bool `json:"cut,omitempty"`
}

// list is a ring buffer of descriptors.
type list struct {
	rate    perSecond
	skipped atomic.Uint64

	mu   sync.Mutex
	last []*RecentDescriptor
	next int // index of the descriptor that is overwritten next
}

// note keeps copies of the descriptors of a decision that were refused, and of the descriptors that no rule matched.
func (r *Recent) note(d *Decision) {
	for i := range d.Request.Descriptors {
		outcome := decided
		if d.Rules[i] == nil {
			outcome = d.outcome(i)
		}
		switch {
		case d.Response.Statuses[i].Code == rls.OverLimit:
			r.refused.add(d, i, outcome)
		case d.forgotten(i):
			r.unmatched.add(d, i, outcome)
		}
	}
}

func (l *list) add(d *Decision, i int, outcome limits.Outcome) {
	if !l.rate.take(d.At.Unix(), recentPerSecond) {
		l.skipped.Add(1)
		return
	}
	r := &RecentDescriptor{At: d.At.UTC(), Outcome: outcome, Hits: d.Request.Taken(i)}
	r.Domain = text(d.Request.Domain, &r.Cut)
	size, in := 0, d.Request.Descriptors[i].Entries
	for _, e := range in {
		if size > maxRecentText {
			r.Cut = true
			break
		}
		size += min(len(e.Key), maxText) + min(len(e.Value), maxText)
		r.Entries = append(r.Entries, rls.Entry{Key: text(e.Key, &r.Cut), Value: text(e.Value, &r.Cut)})
	}
	if rule := d.Rules[i]; rule != nil {
		r.LimitView = rule.LimitView()
		r.Rule, r.File = text(rule.Path(d.Request.Domain), &r.Cut), rule.At()
	}
	if status := d.Response.Statuses[i]; status.HasLimit {
		r.Limit, r.Reset = &status.PerUnit, &status.Reset
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last[l.next] = r
	l.next = (l.next + 1) % len(l.last)
}

// RecentList is the content of one list, with the newest descriptor first.
type RecentList struct {
	// Skipped is the number of descriptors that were not kept because there were too many in one second.
	Skipped     uint64             `json:"skipped"`
	Descriptors []RecentDescriptor `json:"descriptors"`
}

// Refused returns the descriptors of a domain that were refused last; of all domains if domain is "".
func (r *Recent) Refused(domain string) RecentList { return r.refused.read(domain) }

// Unmatched returns the descriptors of a domain that no rule matched last; of all domains if domain is "".
func (r *Recent) Unmatched(domain string) RecentList { return r.unmatched.read(domain) }

func (l *list) read(domain string) RecentList {
	l.mu.Lock()
	all, next := append([]*RecentDescriptor(nil), l.last...), l.next
	l.mu.Unlock()
	out := RecentList{Skipped: l.skipped.Load(), Descriptors: []RecentDescriptor{}}
	shown := text(domain, new(bool))
	for i := range all {
		r := all[(next-1-i+2*len(all))%len(all)]
		if r == nil {
			break
		}
		if domain == "" || r.Domain == shown {
			out.Descriptors = append(out.Descriptors, *r)
		}
	}
	return out
}
