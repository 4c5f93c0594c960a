//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// scenario is one kind of traffic: a request as text, and the numbers that are inserted into it.
//
// The text is a list of descriptors separated by "|". Each descriptor is a sequence of "(key,value)". Every "#" is
// replaced by the number of the request in seven digits, so that all requests of a scenario have the same length and
// can be made by overwriting digits in a prepared message.
type scenario struct {
	request string
	keys    int  // how many different numbers there are
	inTurn  bool // use the numbers one after the other, so that each is used once
	zipf    bool // use a few numbers often and most seldom; otherwise all are equally likely
	over    bool // all answers are OVER_LIMIT, except for a few at the beginning
	digits  int  // number of digits, if not seven: a group of an IPv6 address has at most four
}

const domain = "bench"

// scenarios are the scenarios for the rules of ruleText and, in the second part, for those of limitRules.
var scenarios = map[string]scenario{
	"single": {request: "(api_key,key-#)", keys: 10_000},
	"multi": {keys: 10_000, request: "(tenant,t-#)(route,/v1/orders)|" +
		"(tenant,t-#)(route,/v1/orders)(method,POST)|" +
		"(remote_address,10.#)(route,/v1/orders)|" +
		"(user,u-#)(plan,gold)(region,eu-west)"},
	"hot":       {request: "(hot,one)", keys: 1},
	"overlimit": {request: "(spent,one)", keys: 1, over: true},
	"unmatched": {request: "(nobody,key-#)", keys: 10_000},
	"nested":    {request: "(n1,a)(n2,b)(n3,c)(n4,d)(n5,key-#)", keys: 10_000},
	"zipf":      {request: "(account,acc-#)", keys: 1_000_000, zipf: true},
	"patterns":  {request: patternsRequest(), keys: 10_000},
	"fill":      {request: "(account,acc-#)", keys: 1_000_000, inTurn: true},

	"fixed":             {request: "(fixed,key-#)", keys: 10_000},
	"sliding":           {request: "(sliding,key-#)", keys: 10_000},
	"bucket":            {request: "(bucket,key-#)", keys: 10_000},
	"fixed hot":         {request: "(fixed,one)", keys: 1},
	"bucket hot":        {request: "(bucket,one)", keys: 1},
	"fixed overlimit":   {request: "(fixed_spent,one)", keys: 1, over: true},
	"sliding overlimit": {request: "(sliding_spent,one)", keys: 1, over: true},
	"fixed list":        {request: "(fixed_list,key-#)", keys: 10_000},
	"list":              {request: "(list,key-#)", keys: 10_000},
	"values":            {request: "(path,/v1/items/#)", keys: networkCount},
	"cidr":              {request: "(address,2001:db8:0:#::1)", keys: networkCount, digits: 4},
}

// plenty is a limit that no run reaches.
const plenty = "{unit: day, requests_per_unit: 4000000000}"

// serverRules is a format string for rules. Its arguments are the domain, the constant plenty, the limit of the last
// rule, and the rules for the scenario "patterns".
//
//go:embed rules.yaml
var serverRules string

// ruleText returns the rules for the scenarios, and as many further rules as extra says, for values that no scenario
// sends. Some rules have the limit extraLimit. Answers contain it, and so show which generation of rules has decided.
func ruleText(extra int, extraLimit uint32) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, serverRules, domain, plenty, extraLimit, patternRules())
	for i := range extra {
		fmt.Fprintf(&b,
			"  - key: path\n    value: /v1/items/%07d\n    rate_limit:\n      unit: hour\n"+
				"      requests_per_unit: %d\n", i, extraLimit)
	}
	return []byte(b.String())
}

// patternCount is the number of patterns for which the values in the scenario "patterns" are searched. Only the last
// pattern matches.
const patternCount = 100

// patternsRequest returns a request with 64 descriptors, whose values are as long as one DATA frame allows.
func patternsRequest() string {
	const descriptor = "(searched,/files/"
	var b strings.Builder
	for i := range 64 {
		fmt.Fprintf(&b, "%s%02d/%s/#/last)|", descriptor, i, strings.Repeat("path/", 24))
	}
	return strings.TrimSuffix(b.String(), "|")
}

// patternRules returns the rules for the scenario "patterns".
func patternRules() string {
	var b strings.Builder
	for i := range patternCount - 1 {
		fmt.Fprintf(&b, "  - key: searched\n    value: '*/absent-%02d/*'\n    rate_limit: %s\n", i, plenty)
	}
	b.WriteString("  - key: searched\n    value: '/files/*'\n    rate_limit: " + plenty + "\n")
	return b.String()
}

// encoder makes the requests of one scenario, one after the other in the same memory.
type encoder struct {
	message []byte // an encoded RateLimitRequest, preceded by gRPC's five bytes
	digits  int
	slots   []int // offsets in message where the number is inserted
	numbers func() uint32
}

// newEncoder returns an encoder for a scenario. The numbers come from a fixed seed, so that all targets get the same
// keys.
func newEncoder(s scenario) *encoder {
	e := &encoder{digits: cmp.Or(s.digits, 7), numbers: numbers(s)}
	// The message may also contain single bytes '#', as parts of lengths, but not as many next to each other as there
	// are digits.
	mark := strings.Repeat("#", e.digits)
	request := &ratelimitv3.RateLimitRequest{Domain: domain}
	for text := range strings.SplitSeq(s.request, "|") {
		descriptor := &commonv3.RateLimitDescriptor{}
		for pair := range strings.SplitSeq(strings.Trim(text, "()"), ")(") {
			key, value, _ := strings.Cut(pair, ",")
			descriptor.Entries = append(descriptor.Entries,
				&commonv3.RateLimitDescriptor_Entry{Key: key, Value: strings.ReplaceAll(value, "#", mark)})
		}
		request.Descriptors = append(request.Descriptors, descriptor)
	}
	message, err := proto.Marshal(request)
	if err != nil {
		panic(err) // cannot fail: the message is a constant of this program
	}
	e.message = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	for at := 0; ; at += e.digits {
		i := bytes.Index(e.message[at:], []byte(mark))
		if i < 0 {
			return e
		}
		at += i
		e.slots = append(e.slots, at)
	}
}

// next returns the next request, in memory that the following call of next overwrites.
func (e *encoder) next() []byte {
	n := e.numbers()
	var text [7]byte
	for i := len(text) - 1; i >= 0; i-- {
		text[i] = byte('0' + n%10)
		n /= 10
	}
	for _, at := range e.slots {
		copy(e.message[at:], text[len(text)-e.digits:])
	}
	return e.message
}

// numbers returns a function that returns numbers below s.keys, at random or counting up.
func numbers(s scenario) func() uint32 {
	if s.inTurn {
		n := uint32(0)
		return func() uint32 { n++; return (n - 1) % uint32(s.keys) }
	}
	random := rand.New(rand.NewPCG(1, 1))
	if !s.zipf {
		return func() uint32 { return uint32(random.Uint64() >> 32 * uint64(s.keys) >> 32) }
	}
	// Draw the numbers in advance: to draw one, logarithms must be computed, which would use the load's CPU time.
	zipf := rand.NewZipf(random, 1.1, 1, uint64(s.keys-1))
	drawn := make([]uint32, 1<<20)
	for i := range drawn {
		drawn[i] = uint32(zipf.Uint64())
	}
	i := 0
	return func() uint32 { i++; return drawn[i&(len(drawn)-1)] }
}

// limitsRules is part of the names of targets that have the rules of limitRules.
const limitsRules = ", limits"

// twins maps a scenario to the scenario to compare it with, which counts the same requests in fixed windows, or finds
// the same rules by exact values.
var twins = map[string]string{
	"sliding": "fixed", "bucket": "fixed", "bucket hot": "fixed hot", "sliding overlimit": "fixed overlimit",
	"list": "fixed list", "cidr": "values",
}

// networkCount is the number of prefixes, or of values, of one key. valuesPerEntry is the greatest number of values
// that one entry may have.
const networkCount, valuesPerEntry = 10_000, 1_000

// fewLimits is a format string for rules, with the arguments domain and plenty. Its windows and token buckets are so
// large that no run uses them up, so each key keeps one counter for the whole run.
//
//go:embed limits.yaml
var fewLimits string

// limitRules returns the rules with all kinds of limits.
func limitRules() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, fewLimits, domain, plenty)
	for i := range networkCount {
		if i%valuesPerEntry == 0 {
			fmt.Fprintf(&b, "  - key: path\n    rate_limit: %s\n    values:\n", plenty)
		}
		fmt.Fprintf(&b, "      - /v1/items/%07d\n", i)
	}
	fmt.Fprintf(&b, "  - key: address\n    rate_limit: %s\n    cidr:\n", plenty)
	for i := range networkCount {
		fmt.Fprintf(&b, "      - '2001:db8:0:%04d::/64'\n", i)
	}
	return []byte(b.String())
}

// limitStores are the stores that support every algorithm.
var limitStores = []string{"memory", "redis", "cluster"}

// limitGroups returns the rows for all kinds of limits, for each store: in a group, a kind of limit is next to its
// twin, the scenario to compare it with.
func limitGroups() (all []group) {
	for _, store := range limitStores {
		on := store + limitsRules
		fixed := append(each(on, "fixed", "sliding", "bucket"), line{scenario: "fixed", target: on, via: viaTap},
			line{scenario: "fixed", target: store + "+top" + limitsRules, via: viaTop})
		all = append(all, fixed, each(on, "fixed hot", "bucket hot"), each(on, "fixed overlimit", "sliding overlimit"),
			each(store+"+cache"+limitsRules, "fixed overlimit", "sliding overlimit"), each(on, "fixed list", "list"),
			each(on, "values", "cidr"))
	}
	slow := each("redis"+limitsRules, "fixed", "sliding", "bucket")
	for i := range slow {
		slow[i].open = true
	}
	return append(all, slow)
}

// listen requests the page /tap of a daemon, at the default rate of 100 events a second, and reads it until stop is
// called.
func listen(ctx context.Context, t *target) (stop func(), err error) {
	answer, err := fetch(ctx, http.DefaultClient, "http://"+t.debug+"/tap?rate=100&seconds=3600", "")
	if err != nil {
		return nil, err
	}
	var reading sync.WaitGroup
	reading.Go(func() { io.Copy(io.Discard, answer) })
	return func() { answer.Close(); reading.Wait() }, nil
}
