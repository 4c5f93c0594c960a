// Package limits turns rate limit configuration into rules and finds the rule for a request's descriptor. Package
// rulefile reads files and xDS resources into a tree with positions (tree.go). This package checks the tree (check.go)
// and compiles it into an immutable trie (compile.go, trie.go), in which Find looks rules up without allocating. It
// also lays out counter keys (key.go) and metric keys (metric.go).
//
// The package knows neither stores nor gRPC nor YAML, reads no file and has no clock: callers pass trees and window
// starts.
package limits

import (
	"fmt"
	"maps"
	"runtime"
	"slices"

	"gatehouse/ratelimit/internal/stats"
)

// FailureMode is a domain's answer when its counters cannot be reached.
type FailureMode uint8

// Failure modes. With FailureUnset, STORE_FAILURE_MODE applies.
const (
	FailureUnset FailureMode = iota
	FailureError
	FailureAllow
	FailureDeny
)

var failureNames = []string{"", "error", "allow", "deny"}

// FailureWords returns the modes that a configuration may set.
func FailureWords() []string { return failureNames[1:] }

// String returns the mode as configurations write it, empty for FailureUnset.
func (m FailureMode) String() string {
	if int(m) < len(failureNames) {
		return failureNames[m]
	}
	return ""
}

// ParseFailureMode parses error, allow or deny; the empty text is FailureUnset.
func ParseFailureMode(s string) (FailureMode, error) {
	if i := slices.Index(failureNames, s); i >= 0 {
		return FailureMode(i), nil
	}
	return FailureUnset, fmt.Errorf("limits: failure mode %q is not one of error, allow, deny", s)
}

// Settings shape what rules are compiled to.
type Settings struct {
	// true: several files may add top-level entries to one domain; false: a second file of a domain is refused.
	MergeDomains bool `env:"MERGE_DOMAIN_CONFIG" envDefault:"false" table:"Rules"`
	// Share of a limit from which on hits count as near_limit.
	NearRatio float32 `env:"NEAR_LIMIT_RATIO" envDefault:"0.8" min:"0" max:"1"`
	// Put before every key, verbatim: separates deployments that share a store.
	KeyPrefix string `env:"CACHE_KEY_PREFIX"`
}

// Options are what rules are compiled with.
type Options struct {
	Settings
	EscapedKeys bool // CACHE_KEY_FORMAT=escaped
	// Memcached refuses algorithms other than fixed_window: BACKEND_TYPE=memcache.
	Memcached bool
	// Paced makes a load sleep more than it works, so that requests keep the processor meanwhile. The load takes three
	// times as long.
	Paced bool
	// Stats resolves the counters of rules. Without it (check, explain) every rule gets unread counters of its own.
	Stats *stats.Registry
}

// muchText is the size of rules, in bytes, from which the garbage of reading them is collected at once: 100,000 rules
// are 6 MB of text and leave 50 MB of garbage.
const muchText = 1 << 20

// Compile checks and compiles documents that were read from so many bytes.
func Compile(bytes int, docs []Document, o Options, rep *Report) (*Rules, []Problem, error) {
	domains := check(docs, o, rep)
	if rep.Stopped() {
		return nil, nil, rep.abandoned()
	}
	sortProblems(rep.warnings)
	if err := rep.rejection(); err != nil {
		return nil, rep.warnings, err
	}
	much := bytes >= muchText
	if much {
		runtime.GC() // frees what reading has used, before as much again is made: lowers the peak of a reload by a sixth
	}
	rules := compile(domains, o, rep)
	if rep.Stopped() {
		return nil, nil, rep.abandoned()
	}
	rules.much, rules.zones = much, slices.Sorted(maps.Keys(rep.zones))
	return rules, rep.warnings, nil
}
