// Package limits turns rate limit configuration into rules and finds the rule for a request's descriptor. Package
// rulefile reads files and xDS resources into a tree with positions (tree.go). This package checks the tree (check.go)
// and compiles it into an immutable trie (compile.go, trie.go), in which Find looks rules up without allocating. It
// also builds counter keys (key.go) and metric keys (metric.go).
//
// A configured descriptor is called an entry; a descriptor of a request consists of entries, too, each a key and a
// value. A compiled entry is a step of the trie. The steps nested in one step are its branch, and the steps of a branch
// that share a key are a level.
//
// The package knows neither stores nor gRPC nor YAML, reads no file and has no clock: callers pass trees and the starts
// of windows.
package limits

import (
	"fmt"
	"maps"
	"runtime"
	"slices"

	"gatehouse/ratelimit/internal/stats"
)

// FailureMode says how requests of a domain are answered while the store of their counters fails.
type FailureMode uint8

// These are the failure modes. FailureUnset means that the setting STORE_FAILURE_MODE applies.
const (
	FailureUnset FailureMode = iota
	FailureError
	FailureAllow
	FailureDeny
)

var failureNames = []string{"", "error", "allow", "deny"}

// FailureWords returns the words for the modes that a configuration may set.
func FailureWords() []string { return failureNames[1:] }

// String returns the mode's word in configurations; empty for FailureUnset.
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

// Settings are the environment variables that change how rules are compiled.
type Settings struct {
	// true: several files may add top-level entries to one domain; false: a second file for a domain is refused.
	MergeDomains bool `env:"MERGE_DOMAIN_CONFIG" envDefault:"false" table:"Rules"`
	// Share of a limit from which on hits count as near_limit.
	NearRatio float32 `env:"NEAR_LIMIT_RATIO" envDefault:"0.8" min:"0" max:"1"`
	// Text put before every key, verbatim; it separates deployments that share a store.
	KeyPrefix string `env:"CACHE_KEY_PREFIX"`
}

// Options are the settings and other inputs with which rules are compiled.
type Options struct {
	Settings
	EscapedKeys bool // counter keys have the escaped layout (CACHE_KEY_FORMAT=escaped)
	// Memcached makes check refuse all algorithms but fixed_window: the counters are in memcached
	// (BACKEND_TYPE=memcache).
	Memcached bool
	// Paced makes a load sleep more than it works, so that requests can use the processor. The load then takes three
	// times as long.
	Paced bool
	// Stats is the registry that has the rules' statistics. If it is nil, as in the commands check and explain, each
	// rule gets statistics of its own, which nothing reads.
	Stats *stats.Registry
}

// muchText is the size of rule texts, in bytes, from which on the garbage that reading them leaves is collected
// immediately after reading: 100,000 rules are 6 MB of text and leave 50 MB of garbage.
const muchText = 1 << 20

// Compile checks and compiles documents. bytes is the size of the texts from which they were read.
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
		// Free the memory that reading used, before compiling takes as much. This lowers a reload's peak of memory by a
		// sixth.
		runtime.GC()
	}
	rules := compile(domains, o, rep)
	if rep.Stopped() {
		return nil, nil, rep.abandoned()
	}
	rules.much, rules.zones = much, slices.Sorted(maps.Keys(rep.zones))
	return rules, rep.warnings, nil
}
