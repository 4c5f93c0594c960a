package observe

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/printable"
	"gatehouse/ratelimit/internal/rls"
)

// Bounds of the copies of requests: callers decide how long their texts are and how many.
const (
	maxText  = 256      // bytes of one text
	maxEvent = 16 << 10 // bytes of one event
)

// Event is one decision, as a line of /tap.
type Event struct {
	At     time.Time `json:"at"`
	Domain string    `json:"domain"`
	Code   string    `json:"code"` // of the request as a whole
	Hits   uint64    `json:"hits"` // of each descriptor without hits of its own
	// Sample is the share of requests that the listener sees.
	Sample float64 `json:"sample"`
	// Cut reports that texts are shorter than in the request.
	Cut         bool              `json:"cut,omitempty"`
	Descriptors []EventDescriptor `json:"descriptors"`
}

// EventDescriptor is one descriptor of a request with its answer.
type EventDescriptor struct {
	Entries []rls.Entry `json:"entries"` // invalid UTF-8 is written as \xNN
	// OwnLimit, Hits and Refund are as in the request.
	OwnLimit *OwnLimit `json:"own_limit,omitempty"`
	Hits     *uint64   `json:"hits,omitempty"`
	Refund   bool      `json:"refund,omitempty"`

	Code string `json:"code"`
	// Rule is the dotted path of the deciding entry, and File the entry's file and position.
	Rule      string  `json:"rule,omitempty"`
	File      string  `json:"file,omitempty"`
	Limit     *uint32 `json:"limit,omitempty"`
	Remaining *uint32 `json:"remaining,omitempty"`
	Reset     *int64  `json:"reset,omitempty"`
	limits.LimitView
	// Unmatched is why no rule decides.
	Unmatched limits.Outcome `json:"unmatched,omitempty"`
}

// OwnLimit is a limit that a request brings along.
type OwnLimit struct {
	RequestsPerUnit uint32 `json:"requests_per_unit"`
	Unit            string `json:"unit"`
}

// text copies a text of a request, and cuts a long one.
func text(s string, cut *bool) string {
	s, shorter := printable.Cut(s, maxText)
	*cut = *cut || shorter
	if utf8.ValidString(s) {
		return strings.Clone(s)
	}
	return printable.Text(s)
}

func entries(of []rls.Entry, cut *bool) []rls.Entry {
	out := make([]rls.Entry, len(of))
	for i, e := range of {
		out[i] = rls.Entry{Key: text(e.Key, cut), Value: text(e.Value, cut)}
	}
	return out
}

// size returns how many bytes the texts of a decision take at least in an event.
func (d *Decision) size() int {
	n := min(len(d.Request.Domain), maxText)
	for i := range d.Request.Descriptors {
		for _, e := range d.Request.Descriptors[i].Entries {
			n += min(len(e.Key), maxText) + min(len(e.Value), maxText) + len(`{"key":"","value":""}`)
		}
	}
	return n
}

// event copies a decision.
func (d *Decision) event(sample float64) *Event {
	e := &Event{At: d.At.UTC(), Code: d.Response.Overall.String(), Hits: uint64(max(d.Request.HitsAddend, 1)),
		Sample: sample, Descriptors: make([]EventDescriptor, len(d.Request.Descriptors))}
	e.Domain = text(d.Request.Domain, &e.Cut)
	for i := range d.Request.Descriptors {
		in, out, status := &d.Request.Descriptors[i], &e.Descriptors[i], d.Response.Statuses[i]
		out.Entries, out.Refund, out.Code = entries(in.Entries, &e.Cut), in.Negative, status.Code.String()
		if in.HasLimit {
			out.OwnLimit = &OwnLimit{in.Limit.PerUnit, in.Limit.Unit.String()}
		}
		if in.HasHits {
			hits := in.Hits
			out.Hits = &hits
		}
		if status.HasLimit {
			out.Limit, out.Remaining, out.Reset = &status.PerUnit, &status.Remaining, &status.Reset
		}
		out.Unmatched = d.outcome(i)
		if rule := d.Rules[i]; rule != nil {
			out.LimitView = rule.LimitView()
			out.Rule, out.File = text(rule.Path(d.Request.Domain), &e.Cut), rule.At()
		}
	}
	return e
}

// line returns the event as a line of JSON; nil if the line would be too long.
func (e *Event) line() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil || b.Len() > maxEvent {
		return nil
	}
	return b.Bytes()
}
