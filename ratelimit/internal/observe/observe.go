// Package observe shows decisions to operators: the tap streams them as they are made, recent keeps the last refused
// and unmatched descriptors, top counts the keys with most hits.
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

// Settings turn on what is kept without a listener. The fields' comments are the documentation of the variables.
type Settings struct {
	// Descriptors that /recent keeps: so many refused and so many unmatched ones, with values of requests; 0: off.
	RecentSize int `env:"DEBUG_RECENT_SIZE" envDefault:"0" min:"0" max:"10000"`
	// Keys that /top counts in each minute, 512 bytes each; 0: off.
	TopKeys int `env:"DEBUG_TOP_KEYS" envDefault:"0" min:"0" max:"10000"`
}

// MaxListeners is how many taps may be open at a time.
const MaxListeners = 4

// ErrTooManyListeners refuses a further tap.
var ErrTooManyListeners = errors.New("4 taps are open, which is the most there may be")

// ErrClosed refuses a tap while the daemon stops.
var ErrClosed = errors.New("the daemon is stopping")

// Observer passes decisions to their watchers. The zero value has no watchers.
type Observer struct {
	// watching is nil while nothing watches, so that a decision then costs one atomic load.
	watching atomic.Pointer[Watchers]
	recent   *Recent // nil: off
	top      *Top    // nil: off

	mu        sync.Mutex
	listeners []*Listener
	closed    bool
}

// Keep turns on what is kept without a listener. It is called before the first decision.
func (o *Observer) Keep(s Settings) {
	o.recent, o.top = newRecent(s.RecentSize), newTop(s.TopKeys)
	o.publish()
}

// Watching returns the watchers of decisions; nil if there are none.
func (o *Observer) Watching() *Watchers { return o.watching.Load() }

// Recent returns the last descriptors; nil when recent is off.
func (o *Observer) Recent() *Recent { return o.recent }

// Top returns the counts of keys; nil when top is off.
func (o *Observer) Top() *Top { return o.top }

// Listen opens a tap, which the caller closes after use. The error is ErrTooManyListeners or ErrClosed.
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

// publish puts the present watchers in force. Requests read them without a lock, so each change makes a new value.
func (o *Observer) publish() {
	if len(o.listeners) == 0 && o.recent == nil && o.top == nil {
		o.watching.Store(nil)
		return
	}
	o.watching.Store(&Watchers{listeners: slices.Clone(o.listeners), recent: o.recent, top: o.top})
}

// Close ends all taps, and refuses further ones.
func (o *Observer) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, l := range o.listeners {
		l.end()
	}
}

// Watchers are the taps, recent and top that see decisions.
type Watchers struct {
	listeners []*Listener
	recent    *Recent
	top       *Top
}

// Decision is a decided request. All of it belongs to the request, and is read before Note returns.
type Decision struct {
	// At is when the request arrived, Done when it was decided.
	At, Done time.Time
	Request  *rls.Request
	Response *rls.Response
	// Set is the rules in force. Domain is the request's domain in it; nil for an unknown domain.
	Set    *limits.Rules
	Domain *limits.Domain
	// Rules has the rule of each descriptor; nil where none decides.
	Rules []*limits.Rule
	// Keys has the key of a counter of each descriptor; nil where no store was called. Keys may be empty unless
	// Watchers.Counting returns true.
	Keys [][]byte
}

// Counting reports whether hits are counted by keys.
func (w *Watchers) Counting() bool { return w.top != nil }

// Note shows a decision to all watchers. buf is scratch space, which is returned, perhaps grown.
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

// Outcomes in addition to those of limits.
const (
	decided  limits.Outcome = ""
	replaced limits.Outcome = "replaced" // the rule of another descriptor replaces its rule
)

// outcome returns why no rule decides descriptor i, or decided if one does.
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

// forgotten reports whether the configuration has no answer for descriptor i; it has none for an unknown domain either.
func (d *Decision) forgotten(i int) bool {
	if d.Rules[i] != nil || d.Domain == nil {
		return d.Rules[i] == nil
	}
	decided := slices.ContainsFunc(d.Rules, func(r *limits.Rule) bool { return r != nil })
	return d.Domain.Forgotten(d.Request.Descriptors[i].Entries, decided)
}
