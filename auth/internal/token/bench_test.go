package token

import (
	"testing"

	"gatehouse/shared/must"
)

func BenchmarkSign(b *testing.B) {
	rs, es, ed, oct := testKeys(b)
	for _, k := range []*Key{oct, ed, es, rs} {
		b.Run(k.alg.String(), func(b *testing.B) {
			set := setFor(b, k)
			claims := testClaims()
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if dst, err = set.Sign(dst[:0], claims); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The primitive alone: what BenchmarkSign costs above it is ours.
func BenchmarkSignature(b *testing.B) {
	rs, es, ed, oct := testKeys(b)
	for _, k := range []*Key{oct, ed, es, rs} {
		b.Run(k.alg.String(), func(b *testing.B) {
			input := make([]byte, 700)
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if dst, err = k.sign(dst[:0], input); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	rs, es, ed, oct := testKeys(b)
	for _, k := range []*Key{oct, ed, es, rs} {
		b.Run(k.alg.String(), func(b *testing.B) {
			set := setFor(b, k)
			text, err := set.Sign(nil, testClaims())
			must.Succeed(b, err)
			tok := string(text)
			var c Claims
			b.ReportAllocs()
			for b.Loop() {
				must.Succeed(b, must.ErrOf(set.Verify(&c, tok, testNow)))
			}
		})
	}
}

func BenchmarkRefresh(b *testing.B) {
	c := testCodec("key")
	r := testRefresh()
	text := string(c.Append(nil, r))
	b.Run("Append", func(b *testing.B) {
		var dst []byte
		b.ReportAllocs()
		for b.Loop() {
			if dst = c.Append(dst[:0], r); len(dst) != RefreshSize {
				b.Fatal(dst)
			}
		}
	})
	b.Run("Parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			must.Succeed(b, must.ErrOf(c.Parse(text)))
		}
	})
}
