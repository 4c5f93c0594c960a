package stats

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// These constants bound the dynamic table. It is divided into dynamicShards parts, each with a lock of its own.
const (
	dynamicShards = 64
	// maxDynamicKey is the greatest length, in bytes, of a name that contains values of requests: a longer name would
	// not fit into a statsd datagram, and clients could fill the memory with long names. Longer names are counted in
	// the overflow series.
	maxDynamicKey = 512
)

// NotFoundSuffix ends the name of the counter that counts requests for a domain without rules; RulePrefix and the
// domain's name precede it.
const NotFoundSuffix = ".domain_not_found"

// dynamic maps names that contain values of requests to counters. The names are the keys of rules with such values, and
// domains without rules. Keys and domains have a bound each, so that neither displaces the other: values of requests
// must not displace domains, which show that a configuration is wrong. A request looks up its counters under a shard's
// read lock; only a new name takes Registry.mu. Where both locks are needed, the shard's is taken first.
type dynamic struct {
	r      *Registry
	seed   maphash.Seed
	shards [dynamicShards]shard

	keys, unknown   room
	overflowRule    *Rule
	overflowLimit   atomic.Pointer[Rule] // made when it is first needed
	overflowUnknown *Counter
}

// room bounds the number of series of one kind.
type room struct {
	max      int64
	n        atomic.Int64
	overflow *Counter // counts look-ups of new keys that were too long, or for which there was no room
}

// full reports whether a new key of the given length in bytes must use the overflow series, and if so counts an
// overflow.
func (m *room) full(bytes int) bool {
	if bytes > maxDynamicKey || m.n.Load() >= m.max {
		m.overflow.Inc()
		return true
	}
	return false
}

// take reserves room for one more key, and reports whether there was room.
func (m *room) take() bool {
	if m.n.Add(1) <= m.max {
		return true
	}
	m.n.Add(-1)
	m.overflow.Inc()
	return false
}

type shard struct {
	sync.RWMutex
	rules   [2]map[string]*dynamicRule // indexed by ruleKeys and limitKeys
	domains map[string]*dynamicDomain
}

// These are the kinds of keys that map to a Rule: keys of rules, and keys of limits in a rate_limits list.
const (
	ruleKeys = iota
	limitKeys
)

type dynamicRule struct {
	*ruleSeries
	idleness
}

type dynamicDomain struct {
	*series
	idleness
}

// idleness remembers when a sum of counters last changed. Only the flusher uses it.
type idleness struct {
	was   uint64
	since time.Time
}

// over reports whether the sum has not changed for longer than idle.
func (i *idleness) over(sum uint64, now time.Time, idle time.Duration) bool {
	if sum != i.was || i.since.IsZero() {
		i.was, i.since = sum, now
		return false
	}
	return now.Sub(i.since) > idle
}

func (d *dynamic) open(r *Registry, maxKeys, maxDomains int) {
	d.r, d.seed = r, maphash.MakeSeed()
	d.keys.max, d.unknown.max = int64(maxKeys), int64(maxDomains)
	for i := range d.shards {
		for kind := range d.shards[i].rules {
			d.shards[i].rules[kind] = map[string]*dynamicRule{}
		}
		d.shards[i].domains = map[string]*dynamicDomain{}
	}
	d.keys.overflow = r.Counter("ratelimit.stats.dynamic_keys_overflow")
	d.unknown.overflow = r.Counter("ratelimit.stats.unknown_domains_overflow")
	d.overflowRule = &d.hold("_overflow").Rule // held for ever, so that it is never forgotten
	d.overflowUnknown = r.Counter(RulePrefix + "_overflow" + NotFoundSuffix)
	r.GaugeFunc("ratelimit.stats.dynamic_keys", d.keys.n.Load)
	r.GaugeFunc("ratelimit.stats.unknown_domains", d.unknown.n.Load)
}

// DynamicRule returns the counters of a rule whose key contains values of requests. A known key costs one look-up and
// no allocation; key may be reused afterwards. When the table is full, all new keys share one Rule named "_overflow",
// and ratelimit.stats.dynamic_keys_overflow counts them. The caller must not keep the result beyond its request: it is
// forgotten some flushes after its last use.
func (r *Registry) DynamicRule(key []byte) *Rule { return r.dyn.find(key, ruleKeys) }

func (d *dynamic) find(key []byte, kind int) *Rule {
	sh := &d.shards[maphash.Bytes(d.seed, key)%dynamicShards]
	sh.RLock()
	s := sh.rules[kind][string(key)]
	sh.RUnlock()
	if s != nil {
		return &s.Rule
	}
	if d.keys.full(len(key)) {
		return d.overflowOf(kind)
	}
	return d.addRule(sh, key, kind)
}

func (d *dynamic) addRule(sh *shard, key []byte, kind int) *Rule {
	sh.Lock()
	defer sh.Unlock()
	if s := sh.rules[kind][string(key)]; s != nil {
		return &s.Rule
	}
	if !d.keys.take() {
		return d.overflowOf(kind)
	}
	// Different keys may have the same clean name, which may even be the name of a rule without values of requests.
	var clean string
	if kind == limitKeys {
		clean = cleanLimit(key)
	} else {
		clean = string(appendKey(nil, key))
	}
	s := d.hold(clean)
	sh.rules[kind][string(key)] = &dynamicRule{ruleSeries: s}
	return &s.Rule
}

// hold returns the series of a clean key, and makes it if it does not exist. The series is not forgotten before it is
// released.
func (d *dynamic) hold(clean string) *ruleSeries {
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	s := d.r.ruleLocked(clean)
	s.refs++
	return s
}

// overflowOf returns the Rule that new keys of a kind share when the table is full.
func (d *dynamic) overflowOf(kind int) *Rule {
	if kind == ruleKeys {
		return d.overflowRule
	}
	if have := d.overflowLimit.Load(); have != nil {
		return have
	}
	made := &d.hold(string(AppendLabel([]byte("_overflow"), "_overflow"))).Rule // held for ever, as overflowRule is
	d.overflowLimit.Store(made)
	return made
}

// DomainNotFound returns the counter that counts requests for a domain without rules. When there are too many such
// domains, new ones share the counter of the domain "_overflow".
func (r *Registry) DomainNotFound(domain string) *Counter {
	d := &r.dyn
	sh := &d.shards[maphash.String(d.seed, domain)%dynamicShards]
	sh.RLock()
	s := sh.domains[domain]
	sh.RUnlock()
	if s != nil {
		return s.series.counter
	}
	if d.unknown.full(len(domain)) {
		return d.overflowUnknown
	}
	return d.addDomain(sh, domain)
}

func (d *dynamic) addDomain(sh *shard, domain string) *Counter {
	sh.Lock()
	defer sh.Unlock()
	if s := sh.domains[domain]; s != nil {
		return s.series.counter
	}
	if !d.unknown.take() {
		return d.overflowUnknown
	}
	d.r.mu.Lock()
	s := d.r.addLocked(RulePrefix+string(appendKey(nil, []byte(domain)))+NotFoundSuffix, nil, KindCounter)
	s.refs++
	d.r.mu.Unlock()
	sh.domains[strings.Clone(domain)] = &dynamicDomain{series: s}
	return s.counter
}

// expire drops the keys and domains whose counters have not changed for longer than Options.DynamicIdle. The flusher
// calls it after each flush; it locks one shard after the other.
func (d *dynamic) expire(now time.Time, idle time.Duration) {
	for i := range d.shards {
		sh := &d.shards[i]
		sh.Lock()
		for _, rules := range sh.rules {
			for k, s := range rules {
				if s.over(s.sum(), now, idle) {
					delete(rules, k)
					d.release(&d.keys, &s.holders)
				}
			}
		}
		for k, s := range sh.domains {
			if s.over(s.series.counter.Value(), now, idle) {
				delete(sh.domains, k)
				d.release(&d.unknown, &s.holders)
			}
		}
		sh.Unlock()
	}
}

func (d *dynamic) release(m *room, h *holders) {
	m.n.Add(-1)
	d.r.mu.Lock()
	h.refs--
	d.r.mu.Unlock()
}

// NoMatchPrefix begins the name of the counter that counts the descriptors of a domain that no rule matched; the
// domain's name follows.
const NoMatchPrefix = "ratelimit.service.no_match."

// NoMatch returns, for each domain of the rules in force, the counter of descriptors that no rule matched. Counters of
// former domains are flushed while requests that are still running may add to them, and then forgotten.
func (r *Registry) NoMatch(domains []string) map[string]*Counter {
	counters := make(map[string]*Counter, len(domains))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.list {
		if strings.HasPrefix(s.Name, NoMatchPrefix) {
			s.fixed = false
		}
	}
	for _, domain := range domains {
		s := r.addLocked(NoMatchPrefix+string(appendKey(nil, []byte(domain))), nil, KindCounter)
		s.fixed = true
		counters[domain] = s.counter
	}
	return counters
}
