package limits

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/rls"
)

func TestAppendKey(t *testing.T) {
	f := func(o Options, rule *Rule, descriptor, want string) {
		t.Helper()
		r := mustLoad(t, o)
		if got := string(r.AppendKey([]byte("before "), rule, "d", entriesOf(t, descriptor),
			1699999980)); got != "before "+want {
			t.Errorf("%s: %q, want %q", descriptor, got, want)
		}
	}
	minute := &Rule{Unit: rls.Minute, Multiplier: 1}
	f(Options{}, minute, "(k,v)", "d_k_v_1699999980")
	f(Options{Settings: Settings{KeyPrefix: "pre:"}}, minute, "(k,v)(,)", "pre:d_k_v___1699999980")
	f(Options{}, &Rule{Unit: rls.Minute, Multiplier: 1, levels: &ruleLevels{keys: []keyPart{{}, {text: "x*"}}}},
		"(a,b)(c,xyz)", "d_a_b_c_x*_1699999980")

	o := Options{Settings: Settings{KeyPrefix: "pre:"}, EscapedKeys: true}
	f(o, minute, "(k,v)", "pre:d|k=v|m1|1699999980")
	f(o, minute, "(a,x_b_y)", "pre:d|a=x_b_y|m1|1699999980")
	f(o, minute, "(a,x)(b,y)", "pre:d|a=x|b=y|m1|1699999980")
	f(o, &Rule{Unit: rls.Hour, Multiplier: 12}, "(a=b,c|d)(,)", "pre:d|a%3Db=c%7Cd|=|h12|1699999980")
	f(o, &Rule{Unit: rls.Month, Multiplier: 1, levels: &ruleLevels{keys: []keyPart{{text: "x*"}}}}, "(k,xyz)",
		"pre:d|k~x*|M1|1699999980")
	f(o, minute, "(k, \x00%{tag}\x7fé\n)", "pre:d|k=%20%00%25%7Btag%7D%7Fé%0A|m1|1699999980")
}

// Units whose windows begin together have counters of their own in the escaped layout only.
func TestAppendKey_units(t *testing.T) {
	seen := map[string]rls.Unit{}
	r := mustLoad(t, Options{EscapedKeys: true})
	for unit := rls.Second; unit <= rls.Week; unit++ {
		key := string(r.AppendKey(nil, &Rule{Unit: unit, Multiplier: 1}, "d", []rls.Entry{{Key: "k", Value: "v"}}, 0))
		if other, ok := seen[key]; ok {
			t.Errorf("%v and %v share %s", unit, other, key)
		}
		seen[key] = unit
	}
}

// decodeKey undoes the escaped layout, which proves that no two inputs share a key.
func decodeKey(t *testing.T, key string) (domain string, entries []rls.Entry, shared []string, rest string) {
	t.Helper()
	text := func(s string) string {
		var b strings.Builder
		for i := 0; i < len(s); i++ {
			if s[i] != '%' {
				b.WriteByte(s[i])
				continue
			}
			c, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
			if err != nil {
				t.Fatal(err)
			}
			b.WriteByte(byte(c))
			i += 2
		}
		return b.String()
	}
	parts := strings.Split(key, "|")
	shared = make([]string, len(parts)-3)
	for i, p := range parts[1 : len(parts)-2] {
		at := strings.IndexAny(p, "=~")
		e := rls.Entry{Key: text(p[:at])}
		if p[at] == '~' {
			shared[i] = text(p[at+1:])
		} else {
			e.Value = text(p[at+1:])
		}
		entries = append(entries, e)
	}
	return text(parts[0]), entries, shared, strings.Join(parts[len(parts)-2:], "|")
}

// FuzzEscapedKey checks that an escaped key can be read back and is safe for memcache.
func FuzzEscapedKey(f *testing.F) {
	f.Add("d", "k", "v", "", "", "", uint8(2), uint32(1), int64(1699999980))
	f.Add("d|k", "a=b", "c~d", "%3D", "\x00 \x7f", "x*", uint8(7), uint32(4294967295), int64(0))
	f.Fuzz(func(t *testing.T, domain, k1, v1, k2, v2, pattern string, unit uint8, multiplier uint32, start int64) {
		r := &Rules{o: Options{EscapedKeys: true}}
		entries := []rls.Entry{{Key: k1, Value: v1}, {Key: k2, Value: v2}}
		rule := &Rule{Unit: rls.Unit(unit%7 + 1), Multiplier: multiplier}
		shared := make([]string, 2)
		if pattern != "" {
			shared[1], rule.levels = pattern, &ruleLevels{keys: []keyPart{{}, {text: pattern}}}
		}
		key := string(r.AppendKey(nil, rule, domain, entries, start))
		for i := range len(key) {
			if key[i] <= 0x20 || key[i] == 0x7f {
				t.Fatalf("%q holds a byte that memcache refuses", key)
			}
		}
		if pattern != "" {
			entries[1].Value = "" // it is not in the key
		}
		d, e, s, rest := decodeKey(t, key)
		wantRest := string(unitLetters[rule.Unit]) + strconv.FormatUint(uint64(multiplier), 10) +
			"|" + strconv.FormatInt(start, 10)
		if d != domain || !cmp.Equal(e, entries) || !cmp.Equal(s, shared) || rest != wantRest {
			t.Fatalf("%q reads back as %q %q %q %q", key, d, e, s, rest)
		}
	})
}
