package limits

import (
	"math/rand/v2"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/rls"
)

// keyKind is one kind of limit, as the end of its plain keys says it.
var keyKind = regexp.MustCompile(`~([fcrb])[smhdMyw][0-9]+$`)

// anyRule is a limit of some kind.
func anyRule(kind, unit uint8, multiplier uint32) *Rule {
	tags := [...]byte{0, tagFurther, tagCalendar, tagSliding, tagBucket}
	return &Rule{Unit: rls.Unit(unit%7 + 1), Multiplier: multiplier, tag: tags[int(kind)%len(tags)]}
}

// FuzzKeyKinds: the end of a plain key says its kind whatever the values are, so that no counter is read in the form of
// another kind; and no two descriptors or limits share a key in the escaped layout, except further fixed windows of a
// list, which differ from the first in unit or multiplier.
func FuzzKeyKinds(f *testing.F) {
	f.Add("v", "v", uint8(0), uint8(3), uint8(2), uint8(2), uint32(1), uint32(1), int64(1699999980))
	f.Add("v_~rm1", "v", uint8(0), uint8(3), uint8(1), uint8(1), uint32(1), uint32(1), int64(0))
	f.Add("v_1699999980~fm1", "v_1699999980~cM", uint8(0), uint8(1), uint8(1), uint8(4), uint32(1), uint32(11),
		int64(1))
	f.Add("v|rm1", "v|", uint8(3), uint8(4), uint8(1), uint8(1), uint32(1), uint32(11), int64(1))
	f.Fuzz(func(t *testing.T, v1, v2 string, kind1, kind2, unit1, unit2 uint8, multiplier1, multiplier2 uint32,
		start int64) {
		if start < 0 {
			return // before 1970
		}
		compareKinds(t, [2]string{v1, v2},
			[2]*Rule{anyRule(kind1, unit1, multiplier1), anyRule(kind2, unit2, multiplier2)}, start)
	})
}

// TestKeyKinds tries values that look like the ends of keys.
func TestKeyKinds(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 13))
	value := func() string {
		b := make([]byte, r.IntN(8))
		for i := range b {
			b[i] = "_~|frbcm0123456789M"[r.IntN(19)]
		}
		return string(b)
	}
	rule := func() *Rule { return anyRule(uint8(r.IntN(5)), uint8(r.IntN(7)), uint32(1+r.IntN(12))) }
	for range 10_000 {
		compareKinds(t, [2]string{value(), value()}, [2]*Rule{rule(), rule()}, int64(r.IntN(3)*60))
	}
}

func compareKinds(t *testing.T, values [2]string, rules [2]*Rule, start int64) {
	t.Helper()
	plain, escaped := &Rules{}, &Rules{o: Options{EscapedKeys: true}}
	var keys [2]string
	for i, rule := range rules {
		entries := []rls.Entry{{Key: "k", Value: values[i]}}
		key := plain.AppendKey(nil, rule, "d", entries, start)
		kind := keyKind.FindSubmatch(key)
		if (kind != nil) != (rule.tag != 0) || kind != nil && kind[1][0] != rule.tag {
			t.Fatalf("%q does not say that it is of kind %q", key, rule.tag)
		}
		keys[i] = string(escaped.AppendKey(nil, rule, "d", entries, start))
	}
	type limit struct {
		tag        byte
		unit       rls.Unit
		multiplier uint32
	}
	of := func(r *Rule) limit {
		if r.tag == tagFurther {
			return limit{0, r.Unit, r.Multiplier}
		}
		return limit{r.tag, r.Unit, r.Multiplier}
	}
	same := values[0] == values[1] && cmp.Equal(of(rules[0]), of(rules[1]), cmp.AllowUnexported(limit{}))
	if (keys[0] == keys[1]) != same {
		t.Fatalf("%q and %q for %q, %+v and %q, %+v", keys[0], keys[1], values[0], of(rules[0]), values[1],
			of(rules[1]))
	}
}
