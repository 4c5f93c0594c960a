// Package rls has the two most frequent messages of Envoy's v3 rate limit service as plain structs, with a decoder and
// an encoder for their protobuf wire form.
//
// It is the lowest package: it knows neither rules nor stores nor listeners. Messages and field numbers follow
// envoy.service.ratelimit.v3 and envoy.extensions.common.ratelimit.v3.
package rls

import "google.golang.org/protobuf/types/known/structpb"

// Request is one ShouldRateLimit call. After Unmarshal its strings point into the wire bytes and live only as long as
// these; the next Unmarshal into the same Request reuses the slices.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	// HitsAddend applies to every descriptor without its own; 0 means 1.
	HitsAddend uint32
	// Cut reports that Unmarshal left out descriptors: the message has too many.
	Cut bool

	entries []Entry // backs all Descriptors[i].Entries
}

// Descriptor is an ordered list of entries that is counted as a whole.
type Descriptor struct {
	Entries []Entry
	// Limit overrides the configured rule when HasLimit is set.
	Limit    Override
	HasLimit bool
	// Hits replaces the request's HitsAddend when HasHits is set; 0 only looks.
	Hits    uint64
	HasHits bool
	// Negative gives hits back instead of taking them (is_negative_hits).
	Negative bool
}

// Hits returns how many hits a descriptor takes, or gives back.
func (r *Request) Hits(d *Descriptor) uint64 {
	if d.HasHits {
		return d.Hits
	}
	return uint64(max(r.HitsAddend, 1))
}

// Taken returns how many hits descriptor i takes; 0 where it gives hits back.
func (r *Request) Taken(i int) uint64 {
	if d := &r.Descriptors[i]; !d.Negative {
		return r.Hits(d)
	}
	return 0
}

// Entry is one key/value pair of a descriptor. Both are case-sensitive. The names in JSON are those of explain and of
// the debug port's pages.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Override is a limit that the caller brings along.
type Override struct {
	PerUnit uint32
	Unit    Unit
}

// Unit is a rate limit unit, numbered as in RateLimitResponse.RateLimit.Unit. The numbers are
// not in size order: never compare them.
type Unit int32

// The units of the v3 API. A limit in a request cannot name Week; the wire value 7 is passed through.
const (
	UnknownUnit Unit = 0
	Second      Unit = 1
	Minute      Unit = 2
	Hour        Unit = 3
	Day         Unit = 4
	Month       Unit = 5
	Year        Unit = 6
	Week        Unit = 7
)

var unitNames = [...]string{"UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"}

var unitSeconds = [...]int64{0, 1, 60, 3600, 86400, 2592000, 31536000, 604800}

// Seconds returns the length of the unit; 0 for an unknown unit. Months have 30 days, years 365.
func (u Unit) Seconds() int64 {
	if u < 0 || int(u) >= len(unitSeconds) {
		return 0
	}
	return unitSeconds[u]
}

// String returns the enum's name, in upper case; "UNKNOWN" for other numbers.
func (u Unit) String() string {
	if u < 0 || int(u) >= len(unitNames) {
		return unitNames[0]
	}
	return unitNames[u]
}

// Code is the verdict on one descriptor or on the whole request.
type Code int32

// Verdicts. UnknownCode is never sent.
const (
	UnknownCode Code = 0
	OK          Code = 1
	OverLimit   Code = 2
)

// String returns the enum's name.
func (c Code) String() string {
	switch c {
	case OK:
		return "OK"
	case OverLimit:
		return "OVER_LIMIT"
	}
	return "UNKNOWN"
}

// Response is the answer to one call: one Status per request descriptor, in order.
type Response struct {
	Overall  Code
	Statuses []Status
	// Headers become response_headers_to_add.
	Headers []Header
	// Metadata becomes dynamic_metadata; nil leaves it out.
	Metadata *structpb.Struct
}

// Status is the verdict on one descriptor.
type Status struct {
	Code Code
	// HasLimit reports that current_limit and duration_until_reset are sent.
	HasLimit bool
	PerUnit  uint32
	Unit     Unit
	Name     string
	// Remaining is limit_remaining; 4294967295 for an unlimited rule.
	Remaining uint32
	// Reset is the time to the end of the window in whole seconds.
	Reset int64
}

// Header is one header for Envoy to add to the response.
type Header struct{ Key, Value string }
