// Package rls has the request and the response of ShouldRateLimit, the call of Envoy's v3 rate limit service, as plain
// structs, with a decoder and an encoder for their protobuf wire form.
//
// It is the lowest package: it knows neither rules nor stores nor listeners. Messages and field numbers follow
// envoy.service.ratelimit.v3 and envoy.extensions.common.ratelimit.v3.
package rls

import "google.golang.org/protobuf/types/known/structpb"

// Request is the request of one ShouldRateLimit call. After Unmarshal its strings point into the message's bytes, and
// are valid only as long as the bytes are. The next Unmarshal into the same Request reuses its slices.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	// HitsAddend is the number of hits for each descriptor that has no number of its own (Descriptor.HasHits); 0 means
	// 1.
	HitsAddend uint32
	// Cut reports that the message had too many descriptors or entries, and that Unmarshal did not decode all of them.
	Cut bool

	entries []Entry // the entries of all descriptors, into which each Descriptor.Entries points
}

// Descriptor is an ordered list of entries. All entries together name what is counted.
type Descriptor struct {
	Entries []Entry
	// Limit is a limit that the caller sets for this descriptor. It replaces the limit of the configured rule if
	// HasLimit is set.
	Limit    Override
	HasLimit bool
	// Hits replaces the request's HitsAddend if HasHits is set. With 0 hits the counter is read and not changed.
	Hits    uint64
	HasHits bool
	// Negative reports that the hits are given back to the counter instead of added (is_negative_hits).
	Negative bool
}

// Hits returns how many hits the descriptor d adds to its counter or, if d is Negative, gives back.
func (r *Request) Hits(d *Descriptor) uint64 {
	if d.HasHits {
		return d.Hits
	}
	return uint64(max(r.HitsAddend, 1))
}

// Taken returns how many hits descriptor i adds to its counter. It returns 0 if the descriptor gives hits back.
func (r *Request) Taken(i int) uint64 {
	if d := &r.Descriptors[i]; !d.Negative {
		return r.Hits(d)
	}
	return 0
}

// Entry is one key/value pair of a descriptor. Key and value are case-sensitive. The debug port's pages, such as
// /explain, use the JSON names.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Override is a limit that the caller sets in the request, instead of the limit of a configured rule.
type Override struct {
	PerUnit uint32
	Unit    Unit
}

// Unit is the unit of time of a rate limit, with the numbers of RateLimitResponse.RateLimit.Unit. A larger number is
// not always a longer unit (Week is 7), so never compare units by their numbers.
type Unit int32

// These are the units of the v3 API. In a request, the API has no name for a week, but the number 7 is accepted.
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

// Seconds returns the length of the unit in seconds; 0 for an unknown unit. A month has 30 days, a year 365.
func (u Unit) Seconds() int64 {
	if u < 0 || int(u) >= len(unitSeconds) {
		return 0
	}
	return unitSeconds[u]
}

// String returns the unit's name in the API, in upper case; "UNKNOWN" for a number without a name.
func (u Unit) String() string {
	if u < 0 || int(u) >= len(unitNames) {
		return unitNames[0]
	}
	return unitNames[u]
}

// Code is the verdict on one descriptor or on the whole request.
type Code int32

// These are the codes. A response never has UnknownCode.
const (
	UnknownCode Code = 0
	OK          Code = 1
	OverLimit   Code = 2
)

// String returns the code's name in the API.
func (c Code) String() string {
	switch c {
	case OK:
		return "OK"
	case OverLimit:
		return "OVER_LIMIT"
	}
	return "UNKNOWN"
}

// Response is the answer to a Request. It has one Status for each descriptor of the request, in the same order.
type Response struct {
	Overall  Code
	Statuses []Status
	// Headers are sent as response_headers_to_add.
	Headers []Header
	// Metadata is sent as dynamic_metadata; nil: the field is left out.
	Metadata *structpb.Struct
}

// Status is the verdict on one descriptor.
type Status struct {
	Code Code
	// HasLimit reports that a limit applies. Only then are current_limit (PerUnit, Unit, Name) and duration_until_reset
	// (Reset) sent.
	HasLimit bool
	PerUnit  uint32
	Unit     Unit
	Name     string
	// Remaining is sent as limit_remaining: how many hits are left. For an unlimited rule it is 4294967295.
	Remaining uint32
	// Reset is the time in whole seconds until the window ends. For a sliding window or a token bucket, see
	// decide.Outcome.
	Reset int64
}

// Header is one header that Envoy is to add to its response.
type Header struct{ Key, Value string }
