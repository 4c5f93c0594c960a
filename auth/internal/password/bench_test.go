package password

import (
	"context"
	"testing"

	"gatehouse/shared/must"
)

// Through the workers, as a sign-in pays it: the hand-over costs a few microseconds.
func BenchmarkCheck(b *testing.B) {
	for _, setting := range []string{"bcrypt:4", "bcrypt:10", "argon2id:19456,2,1"} {
		b.Run(setting, func(b *testing.B) {
			p, err := ParseParams(setting)
			must.Succeed(b, err)
			w := NewWorkers(Options{Workers: 1, Params: p})
			defer w.Close()
			for b.Loop() {
				if ok, _, err := w.Check(context.Background(), "", "correct horse"); ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}

func BenchmarkHandOver(b *testing.B) {
	w := NewWorkers(Options{Workers: 1})
	defer w.Close()
	for b.Loop() {
		must.Succeed(b, w.do(context.Background(), func() {}))
	}
}
