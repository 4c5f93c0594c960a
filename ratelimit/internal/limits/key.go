package limits

import (
	"strconv"

	"gatehouse/ratelimit/internal/rls"
)

// AppendKey appends the counter key of a rule for one window to dst. It allocates
// nothing when dst has room.
//
// The default layout is <prefix><domain>_<key>_<value>…_<windowStart>, texts as they came, so that
// old and new instances can share a store; different entries may give one key.
//
// The escaped layout is <prefix><domain>|<key>=<value>|…|<unit><multiplier>|<windowStart>. The unit
// is one letter (s m h d w M y). A pattern of share_threshold follows ~ instead of =. Bytes up to
// 0x20, 0x7f and any of % | = ~ { } are written as % and two hexadecimal digits, so no two
// descriptors, units or shared patterns have a key in common, memcache takes it if it is short
// enough, and a value can't choose the node of a cluster with a hash tag. The prefix stands there
// as configured.
func (r *Rules) AppendKey(dst []byte, rule *Rule, domain string, entries []rls.Entry, windowStart int64) []byte {
	dst = append(dst, r.o.KeyPrefix...)
	if r.o.EscapedKeys {
		return appendEscapedKey(dst, rule, domain, entries, windowStart)
	}
	dst = append(dst, domain...)
	shared := rule.shared()
	for i := range entries {
		dst = append(dst, '_')
		dst = append(dst, entries[i].Key...)
		dst = append(dst, '_')
		if i < len(shared) && shared[i] != "" {
			dst = append(dst, shared[i]...)
		} else {
			dst = append(dst, entries[i].Value...)
		}
	}
	dst = append(dst, '_')
	return strconv.AppendInt(dst, windowStart, 10)
}

// unitLetters stand for the units in escaped keys, by number.
const unitLetters = "?smhdMyw"

func appendEscapedKey(dst []byte, rule *Rule, domain string, entries []rls.Entry, windowStart int64) []byte {
	dst = appendEscaped(dst, domain)
	shared := rule.shared()
	for i := range entries {
		dst = append(dst, '|')
		dst = appendEscaped(dst, entries[i].Key)
		if i < len(shared) && shared[i] != "" {
			dst = append(dst, '~')
			dst = appendEscaped(dst, shared[i])
		} else {
			dst = append(dst, '=')
			dst = appendEscaped(dst, entries[i].Value)
		}
	}
	letter := unitLetters[0]
	if u := rule.Unit; u > 0 && int(u) < len(unitLetters) {
		letter = unitLetters[u]
	}
	dst = append(dst, '|', letter)
	dst = strconv.AppendUint(dst, uint64(rule.Multiplier), 10)
	dst = append(dst, '|')
	return strconv.AppendInt(dst, windowStart, 10)
}

// escapes marks the bytes that escaped keys write in hexadecimal.
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
