package observe

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/printable"
	"gatehouse/ratelimit/internal/rls"
)

// Top counts hits by key, minute by minute, and finds the keys with most hits. The number of slots in which it counts
// does not grow with the number of keys. The algorithm is Space-Saving (Metwally, Agrawal, El Abbadi: Efficient
// Computation of Frequent and Top-k Elements in Data Streams, 2005).
type Top struct {
	seed maphash.Seed
	size int

	mu      sync.Mutex
	present *minute // the minute in which hits are counted
	last    *minute // the minute before present, which is only read; nil if it had no hits
}

// newTop returns a Top with slots for the given number of keys, or nil, which means off, if the number is 0.
func newTop(keys int) *Top {
	if keys == 0 {
		return nil
	}
	return &Top{seed: maphash.MakeSeed(), size: keys, present: newMinute(keys)}
}

// note counts the hits of a decision. It counts each descriptor once, by the texts of its counter key: limits that
// share a counter share a slot, and so do the limits of one list.
func (t *Top) note(d *Decision, buf []byte) []byte {
	now := d.Done.Unix() / 60
	for i, rule := range d.Rules {
		hits := d.Request.Taken(i)
		if rule == nil || rule.Unlimited || hits == 0 {
			continue
		}
		var key []byte
		if i < len(d.Keys) {
			key = d.Keys[i]
		}
		if key == nil {
			buf = d.Set.AppendKey(buf[:0], rule, d.Request.Domain, d.Request.Descriptors[i].Entries, 0)
			key = buf
		}
		id := maphash.Bytes(t.seed, texts(key))
		t.mu.Lock()
		t.turn(now)
		if s := t.present.add(id, hits); s != nil {
			s.describe(d, i)
		}
		t.mu.Unlock()
	}
	return buf
}

// texts returns a counter key without its end, which has the window and kind of the limit. limits.Rules.AppendKey
// describes these ends: …_<start> or …_~rm1, in the escaped layout …|m1|<start> or …|rm1.
func texts(key []byte) []byte {
	i := len(key) - 1
	for i > 0 && key[i] != '_' && key[i] != '|' {
		i--
	}
	// If the end is the start of a window, the kind precedes it.
	if i > 0 && key[i] == '|' && '0' <= key[i+1] && key[i+1] <= '9' {
		i = bytes.LastIndexByte(key[:i], '|')
	}
	return key[:max(i, 0)]
}

// turn begins a new minute if the present minute is over. A request that is late, from the minute before the present
// one, counts for the present minute. If the clock goes back by more, counting starts again.
func (t *Top) turn(now int64) {
	if now == t.present.at || now == t.present.at-1 {
		return
	}
	spare := t.last
	t.last = nil
	if t.present.at == now-1 {
		t.last, t.present = t.present, nil
	}
	switch {
	case t.present != nil: // reuse an older minute, which no reader can be using
	case spare != nil && spare.readers == 0:
		t.present = spare
	default:
		t.present = newMinute(t.size)
	}
	t.present.reset(now)
}

// TopKey is one key and its hits in one minute.
type TopKey struct {
	Domain  string      `json:"domain"`
	Entries []rls.Entry `json:"entries"` // invalid UTF-8 is written as \xNN
	// Rule is the rule of the first descriptor that had the key; empty for a limit that came with the request.
	Rule string `json:"rule,omitempty"`
	Hits uint64 `json:"hits"`
	// Error is the number by which Hits may be too high.
	Error uint64 `json:"error"`
	Cut   bool   `json:"cut,omitempty"`
}

// Read returns the keys of the last whole minute, the key with most hits first, and the time at which the minute began.
// It returns only the keys of one domain, unless domain is empty.
func (t *Top) Read(now time.Time, domain string) (from time.Time, keys []TopKey) {
	whole := now.Unix() / 60
	t.mu.Lock()
	t.turn(whole)
	from = time.Unix((t.present.at-1)*60, 0).UTC()
	m := t.last
	if m == nil {
		t.mu.Unlock()
		return from, nil
	}
	m.readers++
	t.mu.Unlock()
	var wanted slot
	wanted.append(domain, ruleText)
	shown := wanted.key().Domain // cut to the length to which slots cut domains
	for i := range m.slots {
		if k := m.slots[i].key(); domain == "" || k.Domain == shown {
			keys = append(keys, k)
		}
	}
	t.mu.Lock()
	m.readers--
	t.mu.Unlock()
	slices.SortStableFunc(keys, func(a, b TopKey) int { return cmp.Compare(b.Hits, a.Hits) })
	return from, keys
}

// minute has the counts of one minute.
type minute struct {
	at      int64 // Unix time / 60
	readers int   // number of readers, which keep the minute from being reused
	slots   []slot
	heap    []ranked // a heap of slots, with the slot with the fewest hits first
	index   index
}

// ranked is an element of the heap: a slot's number and its hits, so that ordering the heap does not read slots.
type ranked struct {
	hits uint64
	slot int32
}

func newMinute(keys int) *minute {
	return &minute{slots: make([]slot, 0, keys), heap: make([]ranked, 0, keys), index: newIndex(keys)}
}

func (m *minute) reset(at int64) {
	clear(m.index)
	m.at, m.slots, m.heap = at, m.slots[:0], m.heap[:0]
}

// add counts hits of a key. It returns the key's slot if the slot is new and needs a description. If no slot is free,
// the key takes over the slot with the fewest hits, and the count goes on from these hits, so that it may be too high
// by their number.
func (m *minute) add(id uint64, hits uint64) *slot {
	at := m.index.find(id, m.slots)
	if i := m.index[at]; i != 0 {
		s := &m.slots[i-1]
		s.hits = counter.Saturate(s.hits, hits)
		m.down(int(s.place), ranked{s.hits, i - 1})
		return nil
	}
	if n := len(m.slots); n < cap(m.slots) {
		m.slots = m.slots[:n+1]
		s := &m.slots[n]
		s.id, s.hits, s.err = id, hits, 0
		m.heap = append(m.heap, ranked{})
		m.index[at] = int32(n + 1)
		m.up(n, ranked{hits, int32(n)})
		return s
	}
	i := m.heap[0].slot
	s := &m.slots[i]
	m.index.remove(s.id, m.slots)
	s.id, s.err, s.hits = id, s.hits, counter.Saturate(s.hits, hits)
	m.index[m.index.find(id, m.slots)] = i + 1
	m.down(0, ranked{s.hits, i})
	return s
}

// up moves an element up the heap, past elements with more hits; down moves an element down, past elements with fewer.
func (m *minute) up(at int, moving ranked) {
	for at > 0 {
		above := (at - 1) / 2
		if m.heap[above].hits <= moving.hits {
			break
		}
		m.put(at, m.heap[above])
		at = above
	}
	m.put(at, moving)
}

func (m *minute) down(at int, moving ranked) {
	for {
		below := 2*at + 1
		if below >= len(m.heap) {
			break
		}
		if right := below + 1; right < len(m.heap) && m.heap[right].hits < m.heap[below].hits {
			below = right
		}
		if m.heap[below].hits >= moving.hits {
			break
		}
		m.put(at, m.heap[below])
		at = below
	}
	m.put(at, moving)
}

func (m *minute) put(at int, r ranked) {
	m.heap[at] = r
	m.slots[r.slot].place = int32(at)
}

// A slot contains the texts of its key. So a new key allocates nothing, and a key takes at most 512 bytes in the two
// minutes that are kept (TestTop_memory). The rule's path is the last text and has at least ruleText bytes.
const (
	slotText = 152
	ruleText = 48
)

// slot has the count and the description of one key in a minute.
type slot struct {
	id        uint64
	hits, err uint64
	place     int32 // index in the heap
	entries   uint8 // number of entries in text
	cut       bool
	used      uint8
	// text has the domain, then keys and values, then the rule's path without the domain. The length of each text
	// precedes it.
	text [slotText]byte
}

// describe copies the texts of descriptor i into the slot.
func (s *slot) describe(d *Decision, i int) {
	s.entries, s.cut, s.used = 0, false, 0
	s.append(d.Request.Domain, ruleText)
	for _, e := range d.Request.Descriptors[i].Entries {
		if int(s.used)+3 > slotText-ruleText {
			s.cut = true
			break
		}
		s.append(e.Key, ruleText+1)
		s.append(e.Value, ruleText)
		s.entries++
	}
	var path [slotText]byte
	s.append(string(d.Rules[i].AppendPath(path[:0], "")), 0)
}

// append adds a text. The text is cut so that at least as many bytes as leave says remain free after it.
func (s *slot) append(text string, leave int) {
	text, shorter := printable.Cut(text, slotText-leave-int(s.used)-1)
	s.cut = s.cut || shorter
	n := copy(s.text[s.used+1:], text)
	s.text[s.used] = byte(n)
	s.used += uint8(n) + 1
}

// key returns the slot's content as a TopKey.
func (s *slot) key() TopKey {
	k := TopKey{Hits: s.hits, Error: s.err, Cut: s.cut, Entries: make([]rls.Entry, s.entries)}
	rest := s.text[:]
	next := func() string {
		n := int(rest[0])
		out := text(string(rest[1:1+n]), new(bool))
		rest = rest[1+n:]
		return out
	}
	k.Domain = next()
	for i := range k.Entries {
		k.Entries[i] = rls.Entry{Key: next(), Value: next()}
	}
	if k.Rule = next(); k.Rule != "" {
		k.Rule = k.Domain + k.Rule
	}
	return k
}
