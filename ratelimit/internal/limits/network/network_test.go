package network

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"gatehouse/shared/chaos"
)

var notAddresses = []string{
	"", ":", "::ffff:", "1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.04", "1.2.3.256", "1.2.3.", ".1.2.3", "1..2.3",
	"1.2.3.4 ", " 1.2.3.4", "1.2.3.4:80", "10.0.0.0/8", "[::1]", "[::1]:80", "fe80::1%eth0", "1.2.3.4%eth0",
	"1.2.3.4,5.6.7.8", ":::", "1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7::8", "::1:2:3:4:5:6:7:8",
	"12345::", "g::", "::1.2.3", "::01.2.3.4", "1:2:3:4:5:6:7:1.2.3.4", "1.2.3.4::", "::1.2.3.4:5", ":1:2:3:4:5:6:7",
	"1:2:3:4:5:6:7:", "0x1.2.3.4", "deadbeef", "api.example.com", "1.2.3.4\n", "１.2.3.4",
}

var addresses = map[string]string{
	"10.1.2.3": "10.1.2.3", "0.0.0.0": "0.0.0.0", "255.255.255.255": "255.255.255.255", "::ffff:10.1.2.3": "10.1.2.3",
	"::ffff:a01:203": "10.1.2.3", "0:0:0:0:0:FFFF:10.1.2.3": "10.1.2.3", "::": "::", "::1": "::1", "1::": "1::",
	"2001:DB8:0:0:8:800:200C:417A": "2001:db8::8:800:200c:417a", "0:0:0:0:0:0:0:0": "::",
	"2001:0db8:0000:0000:0001:0000:0000:0001": "2001:db8::1:0:0:1", "1:2:3:4:5:6:7::": "1:2:3:4:5:6:7:0",
	"::2:3:4:5:6:7:8": "0:2:3:4:5:6:7:8", "::10.1.2.3": "::a01:203", "64:ff9b::192.0.2.33": "64:ff9b::c000:221",
	"1:2:3:4:5:6:1.2.3.4": "1:2:3:4:5:6:102:304", "2001:db8:0:1:1:1:1:1": "2001:db8:0:1:1:1:1:1",
}

func TestParseAddr(t *testing.T) {
	for in, want := range addresses {
		if a, ok := ParseAddr(in); !ok || a.String() != want {
			t.Errorf("%q is %v, %v, want %s", in, a, ok, want)
		}
	}
	for _, in := range notAddresses {
		if a, ok := ParseAddr(in); ok {
			t.Errorf("%q is taken for the address %v", in, a)
		}
	}
}

// FuzzAddr holds the parser to the standard library's, which takes zones too.
func FuzzAddr(f *testing.F) {
	for _, s := range notAddresses {
		f.Add(s)
	}
	for s := range addresses {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, ok := ParseAddr(text)
		want, err := netip.ParseAddr(text)
		if wanted := err == nil && want.Zone() == ""; ok != wanted {
			t.Fatalf("%q is an address: %v, want %v", text, ok, wanted)
		}
		if !ok {
			return
		}
		if want = want.Unmap(); a.netip() != want || a.String() != want.String() || a.Is6() != want.Is6() {
			t.Fatalf("%q is %v, want %v", text, a, want)
		}
		if again, ok := ParseAddr(a.String()); !ok || again != a {
			t.Fatalf("%q is %v, which is read as %v", text, a, again)
		}
	})
}

func TestParsePrefix(t *testing.T) {
	f := func(in, want, masked string, wantMapped bool) {
		t.Helper()
		p, mapped, ok := ParsePrefix(in)
		if !ok || p.String() != want || p.Masked().String() != masked || mapped != wantMapped {
			t.Errorf("%q is %v, masked %v, mapped %v, %v", in, p, p.Masked(), mapped, ok)
		}
	}
	f("10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/8", false)
	f("10.1.2.3/8", "10.1.2.3/8", "10.0.0.0/8", false)
	f("10.1.2.3", "10.1.2.3", "10.1.2.3", false)
	f("10.1.2.3/32", "10.1.2.3", "10.1.2.3", false)
	f("0.0.0.0/0", "0.0.0.0/0", "0.0.0.0/0", false)
	f("::/0", "::/0", "::/0", false)
	f("2001:DB8::/32", "2001:db8::/32", "2001:db8::/32", false)
	f("2001:db8::1", "2001:db8::1", "2001:db8::1", false)
	f("2001:db8::1/64", "2001:db8::1/64", "2001:db8::/64", false)
	f("2001:db8::1:0:0:1/65", "2001:db8::1:0:0:1/65", "2001:db8::/65", false)
	f("::ffff:10.0.0.0/104", "10.0.0.0/8", "10.0.0.0/8", true)
	f("::ffff:10.1.2.3", "10.1.2.3", "10.1.2.3", true)
	f("::ffff:0:0/96", "0.0.0.0/0", "0.0.0.0/0", true)
	f("::ffff:0:0/90", "::ffff:0.0.0.0/90", "::ffc0:0:0/90", false)
	for _, in := range append([]string{"10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/08", "10.0.0.0/", "/8",
		"::/129", "10.0.0.0/8/8", "10.0.0.0 /8", "10.0.0.0/255.0.0.0", "fe80::%1/64"}, notAddresses...) {
		if p, _, ok := ParsePrefix(in); ok && in != "10.0.0.0/8" {
			t.Errorf("%q is taken for the prefix %v", in, p)
		}
	}
	if All4.String() != "0.0.0.0/0" || All6.String() != "::/0" {
		t.Errorf("%v, %v", All4, All6)
	}
}

// linear is the model of a set: every prefix is compared.
type linear []netip.Prefix

func (l linear) chain(a netip.Addr) (found []netip.Prefix) {
	for bits := 128; bits >= 0; bits-- {
		for _, p := range l {
			if p.Bits() == bits && p.Contains(a) {
				found = append(found, p)
				break
			}
		}
	}
	return found
}

// compare looks an address up in a set and in its model, with all shorter prefixes.
func compare(t *testing.T, s *Set, l linear, text string) {
	t.Helper()
	a, ok := ParseAddr(text)
	if !ok {
		t.Fatalf("%q is no address", text)
	}
	var got []string
	for i := s.Longest(a); i >= 0; i = s.Shorter(i) {
		got = append(got, s.Prefix(i).netip().String()+fmt.Sprint("/", s.Prefix(i).Bits()))
	}
	var want []string
	for _, p := range l.chain(a.netip()) {
		want = append(want, p.String())
	}
	if g, w := strings.Join(got, " "), strings.Join(want, " "); g != w || s.Contains(a) != (len(want) > 0) {
		t.Fatalf("%s is in %s, want %s", text, g, w)
	}
}

// set makes a set and its model of prefixes, each cut to its length.
func set(prefixes []netip.Prefix) (*Set, linear) {
	var mine []Prefix
	var model linear
	for _, p := range prefixes {
		p = p.Masked()
		q, _, ok := ParsePrefix(p.String())
		if !ok {
			panic(p.String())
		}
		mine, model = append(mine, q), append(model, p)
	}
	return NewSet(mine), model
}

// Random sets of prefixes that lie in each other answer as a linear scan does.
func TestSet_linearRandom(t *testing.T) {
	for seed := range uint64(chaos.Runs(300)) {
		r := rand.New(rand.NewPCG(seed, 1))
		var prefixes []netip.Prefix
		var asked []netip.Addr
		bytes := func() (b [16]byte) {
			for i := range b {
				b[i] = []byte{0, 0, 0xff, 0x80, byte(r.Uint32())}[r.IntN(5)] // near each other
			}
			return b
		}
		for range r.IntN(60) {
			b := bytes()
			if r.IntN(2) == 0 {
				prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte(b[:])), r.IntN(33)))
			} else if a := netip.AddrFrom16(b); !a.Is4In6() {
				prefixes = append(prefixes, netip.PrefixFrom(a, r.IntN(129)))
			}
		}
		for _, p := range prefixes {
			asked = append(asked, p.Addr(), p.Masked().Addr())
		}
		for range 100 {
			b := bytes()
			asked = append(asked, netip.AddrFrom16(b), netip.AddrFrom4([4]byte(b[:])))
		}
		s, model := set(prefixes)
		for _, a := range asked {
			compare(t, s, model, a.String())
		}
		for _, p := range prefixes { // the longest that contains a whole prefix
			q, _, _ := ParsePrefix(p.Masked().String())
			want := ""
			for _, m := range model.chain(p.Masked().Addr()) {
				if m.Bits() <= p.Bits() {
					want = m.String()
					break
				}
			}
			if n := s.Containing(q); n < 0 || s.Prefix(n).netip().String()+fmt.Sprint("/", s.Prefix(n).Bits()) != want {
				t.Fatalf("seed %d: %v is contained in %d, want %s", seed, q, n, want)
			}
		}
	}
}

func TestMerge(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		var prefixes []Prefix
		for text := range strings.FieldsSeq(in) {
			p, _, ok := ParsePrefix(text)
			if !ok {
				t.Fatal(text)
			}
			prefixes = append(prefixes, p)
		}
		if got := fmt.Sprint(Merge(prefixes)); got != "["+want+"]" {
			t.Errorf("Merge(%s) = %s, want [%s]", in, got, want)
		}
	}
	f("", "")
	f("10.0.0.0/8", "10.0.0.0/8")
	f("10.128.0.0/9 10.0.0.0/9", "10.0.0.0/8")
	f("10.0.0.0/9 10.0.0.0/9 10.1.0.0/16", "10.0.0.0/9")
	f("10.128.0.0/9 11.0.0.0/9", "10.128.0.0/9 11.0.0.0/9") // side by side, but no halves
	f("10.192.0.0/10 10.0.0.0/9 10.128.0.0/10 11.0.0.0/8", "10.0.0.0/7")
	f("0.0.0.0/1 128.0.0.0/1 ::/1 8000::/1", "0.0.0.0/0 ::/0")
	f("0.0.0.0/0 ::/0 1.2.3.4 ::1", "0.0.0.0/0 ::/0")
	f("2001:db8::/128 2001:db8::1", "2001:db8::/127")
	f("0.0.0.0/32 ::/128", "0.0.0.0 ::")
}

// Merged prefixes hold the same addresses, and no two of them could be one.
func TestMerge_linear(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		var prefixes []Prefix
		for range r.IntN(40) {
			prefixes = append(prefixes, addr4(r.Uint32()&0xf00f<<16).First(4+r.IntN(13)))
		}
		merged := Merge(prefixes)
		was, is := NewSet(prefixes), NewSet(merged)
		for v := range uint32(1 << 16) {
			if a := addr4(v << 16); was.Contains(a) != is.Contains(a) {
				t.Fatalf("seed %d: %v in %v but not in %v, or the other way round", seed, a, prefixes, merged)
			}
		}
		for i, p := range merged {
			for _, q := range merged[:i] {
				if p.contains(q) || q.contains(p) || p.isHalf(q) {
					t.Fatalf("seed %d: %v and %v of %v", seed, q, p, merged)
				}
			}
		}
	}
}

func TestSet_empty(t *testing.T) {
	s := NewSet(nil)
	for _, text := range []string{"1.2.3.4", "::1"} {
		if a, _ := ParseAddr(text); s.Longest(a) != -1 || s.Contains(a) {
			t.Errorf("an empty set has %s", text)
		}
	}
}

// Of equal prefixes the first counts; Nested counts along the deepest address.
func TestSet_equal(t *testing.T) {
	s, _ := set([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16"),
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::/0")})
	a, _ := ParseAddr("10.1.2.3")
	if i := s.Longest(a); i != 1 || s.Shorter(i) != 0 || s.Shorter(0) != -1 || s.Nested() != 2 || s.Len() != 4 {
		t.Errorf("%d, %d, %d, nested %d", i, s.Shorter(i), s.Shorter(0), s.Nested())
	}
}

// FuzzSet holds a set to the model, for prefixes and an address of any bytes.
func FuzzSet(f *testing.F) {
	f.Add("10.0.0.0/8 10.1.0.0/16 0.0.0.0/0", "10.1.2.3")
	f.Add("::/0 2001:db8::/32 2001:db8::1/128 10.0.0.0/8", "2001:db8::1")
	f.Add("255.255.255.255/32 255.255.255.254/31 128.0.0.0/1", "255.255.255.254")
	f.Add("::/64 ::/65 0:0:0:0:8000::/65", "::8000:0:0:0")
	f.Fuzz(func(t *testing.T, list, address string) {
		var prefixes []netip.Prefix
		for _, text := range strings.Fields(list) {
			if p, err := netip.ParsePrefix(text); err == nil && !(p.Addr().Is4In6() && p.Bits() >= 96) {
				prefixes = append(prefixes, p)
			}
		}
		s, model := set(prefixes)
		if _, ok := ParseAddr(address); ok {
			compare(t, s, model, address)
		}
		for _, p := range prefixes {
			if a := p.Addr(); !a.Is4In6() {
				compare(t, s, model, a.String())
			}
		}
	})
}

func TestLookup_Alloc(t *testing.T) {
	s, _ := set([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")})
	buf := make([]byte, 0, 64)
	for _, text := range append([]string{"10.1.2.3", "2001:DB8:0:1::5", "::ffff:1.2.3.4"}, notAddresses...) {
		if n := testing.AllocsPerRun(100, func() {
			if a, ok := ParseAddr(text); ok {
				s.Longest(a)
				buf = a.First(24).AppendTo(a.AppendTo(buf[:0]))
			}
		}); n != 0 {
			t.Errorf("%q allocates %v times, want 0", text, n)
		}
	}
}

func randomPrefixes(n int, v6 bool) []netip.Prefix {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([]netip.Prefix, n)
	for i := range out {
		var b [16]byte
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		if v6 {
			b[0], b[1] = 0x20, 1
			out[i] = netip.PrefixFrom(netip.AddrFrom16(b), 32+r.IntN(33))
		} else {
			out[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte(b[:])), 12+r.IntN(21))
		}
	}
	return out
}

func BenchmarkParseAddr(b *testing.B) {
	for _, text := range []string{"10.1.2.3", "203.0.113.254", "2001:db8::1", "2001:db8:1:2:3:4:5:6", "user-4711",
		"deadbeef", "api.example.com", "10.1.2.4:80"} {
		b.Run(text, func(b *testing.B) {
			for b.Loop() {
				ParseAddr(text)
			}
		})
	}
}

func BenchmarkLongest(b *testing.B) {
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{10, 1000, 10_000} {
			b.Run(fmt.Sprintf("v6=%v/%d", v6, n), func(b *testing.B) {
				prefixes := randomPrefixes(n, v6)
				s, _ := set(prefixes)
				r := rand.New(rand.NewPCG(3, 4))
				asked := make([]Addr, 1<<12)
				for i := range asked {
					asked[i], _ = ParseAddr(prefixes[r.IntN(n)].Addr().String())
				}
				for i := 0; b.Loop(); i++ {
					if s.Longest(asked[i&(len(asked)-1)]) < 0 {
						b.Fatal("not found")
					}
				}
			})
		}
	}
}

func BenchmarkNewSet(b *testing.B) {
	var list []Prefix
	for _, p := range randomPrefixes(10_000, false) {
		q, _, _ := ParsePrefix(p.Masked().String())
		list = append(list, q)
	}
	for b.Loop() {
		NewSet(list)
	}
}
