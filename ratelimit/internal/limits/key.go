package limits

import (
	"strconv"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/rls"
)

// AppendKey appends to dst the key under which the store counts a rule's hits in the window that begins at windowStart.
// It allocates nothing if dst has room.
//
// The default layout is <prefix><domain>_<key>_<value>…_<windowStart>, with texts as they are. It is the layout of
// envoyproxy/ratelimit, so that both can count in one store. Different descriptors can have the same key.
//
// The escaped layout is <prefix><domain>|<key>=<value>|…|<unit><multiplier>|<windowStart>. The unit is one letter (s m
// h d w M y). Instead of = there is ~ before a text that stands for several values (a pattern or prefix of
// share_threshold, a group) and before the canonical text of an address that matched a network. Bytes up to 0x20, 0x7f
// and any of % | = ~ { } are written as % and two hexadecimal digits. So no two descriptors, units or shared patterns
// have the same key, memcached accepts the key if it is short enough, and a value cannot choose the node of a Redis
// cluster by a hash tag. The prefix is written as configured.
//
// Counters other than fixed windows have a tag in their keys, which keeps them apart from fixed windows, so that no
// counter is read in a form that it does not have. The tags are r for sliding windows and b for token buckets, whose
// keys have no windowStart (…_~rm1, escaped …|rm1), and c for calendar windows (…_<windowStart>~cM1, escaped
// …|cM1|<windowStart>). The default layout, whose keys otherwise have no unit, also has f for the second and further
// fixed windows of one list (…_<windowStart>~fm1).
func (r *Rules) AppendKey(dst []byte, rule *Rule, domain string, entries []rls.Entry, windowStart int64) []byte {
	dst = append(dst, r.o.KeyPrefix...)
	if r.o.EscapedKeys {
		return appendEscapedKey(dst, rule, domain, entries, windowStart)
	}
	dst = append(dst, domain...)
	keys := rule.rare().keys
	for i := range entries {
		dst = append(dst, '_')
		dst = append(dst, entries[i].Key...)
		dst = append(dst, '_')
		switch {
		case i >= len(keys) || keys[i].isValue():
			dst = append(dst, entries[i].Value...)
		case keys[i].text != "":
			dst = append(dst, keys[i].text...)
		default:
			dst = keys[i].appendAddress(dst, entries[i].Value)
		}
	}
	dst = append(dst, '_')
	if !rule.windowless() {
		dst = strconv.AppendInt(dst, windowStart, 10)
	}
	return rule.appendTag(dst)
}

// appendTag appends the end of a key in the default layout: the rule's tag, unit and multiplier, or nothing for a plain
// fixed window.
func (r *Rule) appendTag(dst []byte) []byte {
	if r.tag == 0 {
		return dst
	}
	return r.appendUnit(append(dst, '~', r.tag))
}

// These are the tags that the comment of AppendKey describes.
const (
	tagFurther  = 'f'
	tagCalendar = 'c'
	tagSliding  = 'r'
	tagBucket   = 'b'
)

// tagOf returns the tag that a limit's keys have; 0, for none, if it is a plain fixed window. fixedSeen reports that an
// earlier limit of the same list is a plain fixed window.
func tagOf(a counter.Algorithm, calendar, fixedSeen bool) byte {
	switch {
	case a == counter.SlidingWindow:
		return tagSliding
	case a == counter.TokenBucket:
		return tagBucket
	case calendar:
		return tagCalendar
	case fixedSeen:
		return tagFurther
	}
	return 0
}

// windowless reports whether the rule's keys have no start of a window.
func (r *Rule) windowless() bool { return r.tag == tagSliding || r.tag == tagBucket }

// unitLetters are the letters for units in escaped keys, indexed by rls.Unit.
const unitLetters = "?smhdMyw"

func appendEscapedKey(dst []byte, rule *Rule, domain string, entries []rls.Entry, windowStart int64) []byte {
	dst = appendEscaped(dst, domain)
	keys := rule.rare().keys
	for i := range entries {
		dst = append(dst, '|')
		dst = appendEscaped(dst, entries[i].Key)
		switch {
		case i >= len(keys) || keys[i].isValue():
			dst = append(dst, '=')
			dst = appendEscaped(dst, entries[i].Value)
		case keys[i].text != "":
			dst = append(dst, '~')
			dst = appendEscaped(dst, keys[i].text)
		default:
			dst = append(dst, '~')
			dst = keys[i].appendAddress(dst, entries[i].Value) // no byte of an address needs an escape
		}
	}
	dst = append(dst, '|')
	if rule.tag != 0 && rule.tag != tagFurther { // fixed windows of a list need none: they differ in unit or multiplier
		dst = append(dst, rule.tag)
	}
	dst = rule.appendUnit(dst)
	if rule.windowless() {
		return dst
	}
	dst = append(dst, '|')
	return strconv.AppendInt(dst, windowStart, 10)
}

// appendUnit appends the letter of the rule's unit, and its multiplier.
func (r *Rule) appendUnit(dst []byte) []byte {
	letter := unitLetters[0]
	if u := r.Unit; u > 0 && int(u) < len(unitLetters) {
		letter = unitLetters[u]
	}
	dst = append(dst, letter)
	return strconv.AppendUint(dst, uint64(r.Multiplier), 10)
}

// escapes marks the bytes that escaped keys write as % and two hexadecimal digits.
var escapes = func() (t [256]bool) {
	for c := range 0x21 {
		t[c] = true
	}
	for _, c := range "\x7f%|=~{}" {
		t[c] = true
	}
	return t
}()

func appendEscaped(dst []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	from := 0
	for i := 0; i < len(s); i++ {
		if c := s[i]; escapes[c] {
			dst = append(dst, s[from:i]...)
			dst = append(dst, '%', hex[c>>4], hex[c&15])
			from = i + 1
		}
	}
	return append(dst, s[from:]...)
}
