// Package observe shows decisions to operators. The tap streams decisions as they are made, recent keeps the
// descriptors that were refused or matched no rule last, and top counts the keys with most hits.
//
// It reads completed decisions. It knows neither stores nor HTTP, and changes no answer: a listener that does not read
// loses events, and no request waits for a listener.
package observe

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// Settings are the environment variables that turn on recent and top. The fields' comments are their documentation.
type Settings struct {
	// How many refused and how many unmatched descriptors /recent keeps, with values of requests; 0: off.
	RecentSize int `env:"DEBUG_RECENT_SIZE" envDefault:"0" min:"0" max:"10000"`
	// How many keys /top counts in each minute, 512 bytes each; 0: off.
	TopKeys int `env:"DEBUG_TOP_KEYS" envDefault:"0" min:"0" max:"10000"`
}

// MaxListeners is the greatest number of taps that may be open at a time.
const MaxListeners = 4

// ErrTooManyListeners is the error for a tap beyond MaxListeners.
var ErrTooManyListeners = errors.New("4 taps are open, which is the most there may be")

// ErrClosed is the error for a tap that is requested while the daemon stops.
var ErrClosed = errors.New("the daemon is stopping")

// Observer passes decisions to the taps, recent and top. The zero value has no taps, and recent and top are off.
type Observer struct {
	// watching is nil while there are no taps and both recent and top are off. A decision then costs one atomic load.
	watching atomic.Pointer[Watchers]
	recent   *Recent // nil if DEBUG_RECENT_SIZE is 0
	top      *Top    // nil if DEBUG_TOP_KEYS is 0

	mu        sync.Mutex
	listeners []*Listener
	closed    bool
}

// Keep turns on recent and top as the settings say. It must be called before the first decision.
func (o *Observer) Keep(s Settings) {
	o.recent, o.top = newRecent(s.RecentSize), newTop(s.TopKeys)
	o.publish()
}

// Watching returns the Watchers to which decisions must be passed; nil if there are none.
func (o *Observer) Watching() *Watchers { return o.watching.Load() }

// Recent returns the descriptors that were refused or unmatched last; nil if recent is off.
func (o *Observer) Recent() *Recent { return o.recent }

// Top returns the counts of keys; nil if top is off.
func (o *Observer) Top() *Top { return o.top }

// Listen opens a tap for the decisions that the filter accepts. The caller must close it. The error is
// ErrTooManyListeners or ErrClosed.
func (o *Observer) Listen(f Filter) (*Listener, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return nil, ErrClosed
	case len(o.listeners) == MaxListeners:
		return nil, ErrTooManyListeners
	}
	l := &Listener{filter: f, queue: make(chan []byte, maxQueued), ended: make(chan struct{})}
	l.close = func() { o.remove(l) }
	o.listeners = append(o.listeners, l)
	o.publish()
	return l, nil
}

func (o *Observer) remove(l *Listener) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listeners = slices.DeleteFunc(o.listeners, func(other *Listener) bool { return other == l })
	o.publish()
}

// publish makes the present taps, recent and top visible to requests. Requests read them without a lock, so each change
// makes a new Watchers.
func (o *Observer) publish() {
	if len(o.listeners) == 0 && o.recent == nil && o.top == nil {
		o.watching.Store(nil)
		return
	}
	o.watching.Store(&Watchers{listeners: slices.Clone(o.listeners), recent: o.recent, top: o.top})
}

// Close ends all taps and refuses new ones.
func (o *Observer) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, l := range o.listeners {
		l.end()
	}
}

// Watchers are the taps, recent and top, to which each decision is passed.
type Watchers struct {
	listeners []*Listener
	recent    *Recent
	top       *Top
}

// Decision is a decided request. Its contents belong to the request and must not be used after Note has returned.
type Decision struct {
	// At is when the request arrived, and Done is when it was decided.
	At, Done time.Time
	Request  *rls.Request
	Response *rls.Response
	// Set is the rules in force. Domain is the part of Set for the request's domain; nil if the domain has no rules.
	Set    *limits.Rules
	Domain *limits.Domain
	// Rules has the rule that decides each descriptor; nil if no rule decides it.
	Rules []*limits.Rule
	// Keys has, for each descriptor, the key of one of its counters; nil if the store was not called for it. Keys may
	// be empty unless Watchers.Counting returns true.
	Keys [][]byte
}

// Counting reports whether top counts hits, which needs Decision.Keys.
func (w *Watchers) Counting() bool { return w.top != nil }

// Note passes a decision to the taps, recent and top. buf is scratch space, which Note may replace by a larger one; it
// returns the one to use next time.
func (w *Watchers) Note(d *Decision, buf []byte) []byte {
	for _, l := range w.listeners {
		l.note(d)
	}
	if w.recent != nil {
		w.recent.note(d)
	}
	if w.top != nil {
		buf = w.top.note(d, buf)
	}
	return buf
}

// These are outcomes of a descriptor in addition to the outcomes of package limits.
const (
	decided  limits.Outcome = ""
	replaced limits.Outcome = "replaced" // the rule of another descriptor replaces the descriptor's rule
)

// outcome returns the reason why no rule decides descriptor i, or the constant decided if a rule does.
func (d *Decision) outcome(i int) limits.Outcome {
	if d.Rules[i] != nil {
		return decided
	}
	if d.Domain == nil {
		return limits.UnknownDomain
	}
	if o := d.Domain.Outcome(d.Request.Descriptors[i].Entries); o != limits.Limited && o != limits.Unlimited {
		return o
	}
	return replaced
}

// forgotten reports whether the configuration has no answer for descriptor i. If the domain has no rules, the
// configuration has an answer for none.
func (d *Decision) forgotten(i int) bool {
	if d.Rules[i] != nil || d.Domain == nil {
		return d.Rules[i] == nil
	}
	decided := slices.ContainsFunc(d.Rules, func(r *limits.Rule) bool { return r != nil })
	return d.Domain.Forgotten(d.Request.Descriptors[i].Entries, decided)
}
