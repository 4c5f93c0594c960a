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

// These constants bound the copies of requests, since callers decide how many texts a request has and how long they
// are.
const (
	maxText  = 256      // bytes of one text
	maxEvent = 16 << 10 // bytes of one event
)

// Event is one decision as a line of JSON shows it on the page /tap.
type Event struct {
	At     time.Time `json:"at"`
	Domain string    `json:"domain"`
	Code   string    `json:"code"` // the code for the request as a whole
	Hits   uint64    `json:"hits"` // the hits of each descriptor that has no hits of its own
	// Sample is the share of requests that the listener of this tap sees.
	Sample float64 `json:"sample"`
	// Cut is set if a text in the event is shorter than in the request.
	Cut         bool              `json:"cut,omitempty"`
	Descriptors []EventDescriptor `json:"descriptors"`
}

// EventDescriptor is one descriptor of a request, with its answer.
type EventDescriptor struct {
	Entries []rls.Entry `json:"entries"` // invalid UTF-8 is written as \xNN
	// OwnLimit, Hits and Refund are as they were in the request.
	OwnLimit *OwnLimit `json:"own_limit,omitempty"`
	Hits     *uint64   `json:"hits,omitempty"`
	Refund   bool      `json:"refund,omitempty"`

	Code string `json:"code"`
	// Rule is the dotted path of the configured entry that decides, and File is its file and position.
	Rule      string  `json:"rule,omitempty"`
	File      string  `json:"file,omitempty"`
	Limit     *uint32 `json:"limit,omitempty"`
	Remaining *uint32 `json:"remaining,omitempty"`
	Reset     *int64  `json:"reset,omitempty"`
	limits.LimitView
	// Unmatched is the reason why no rule decides the descriptor.
	Unmatched limits.Outcome `json:"unmatched,omitempty"`
}

// OwnLimit is a limit that came with the request.
type OwnLimit struct {
	RequestsPerUnit uint32 `json:"requests_per_unit"`
	Unit            string `json:"unit"`
}

// text returns a copy of a text of a request, cut to maxText bytes. It sets *cut if the text was longer.
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

// size returns the least number of bytes that the texts of a decision take in an event.
func (d *Decision) size() int {
	n := min(len(d.Request.Domain), maxText)
	for i := range d.Request.Descriptors {
		for _, e := range d.Request.Descriptors[i].Entries {
			n += min(len(e.Key), maxText) + min(len(e.Value), maxText) + len(`{"key":"","value":""}`)
		}
	}
	return n
}

// event returns a copy of the decision. sample is the share of requests that the listener sees.
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

// line returns the event as a line of JSON; nil if the line would be longer than allowed.
func (e *Event) line() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil || b.Len() > maxEvent {
		return nil
	}
	return b.Bytes()
}
