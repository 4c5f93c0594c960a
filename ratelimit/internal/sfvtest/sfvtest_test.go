package sfvtest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseList(t *testing.T) {
	got, err := ParseList(`"a b\"\\";q=10;w=-1 ,	"";x-y_z.*=0`)
	want := []Member{
		{Name: `a b"\`, Keys: []string{"q", "w"}, Params: map[string]int64{"q": 10, "w": -1}},
		{Name: "", Keys: []string{"x-y_z.*"}, Params: map[string]int64{"x-y_z.*": 0}},
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v, want (-), got (+):\n%s", err, d)
	}
	for _, bad := range []string{`"a",`, `,"a"`, `"a" "b"`, `a;q=1`, `"a`, `"a\b"`, `"a\`, "\"\x7f\"", `"é"`, `"a";q`,
		`"a";Q=1`, `"a";1=1`, `"a";q=`, `"a";q=1;q=2`, `"a";q=1000000000000000`, `"a";q=1.5`, `"a";q=?1`, `"a";;q=1`} {
		if got, err := ParseList(bad); err == nil {
			t.Errorf("%s: %+v, want an error", bad, got)
		}
	}
}
