package totp

import (
	"encoding/base32"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/must"
)

// RFC 6238 appendix B, SHA-1: the last six of its eight digits.
func TestCode_rfc6238(t *testing.T) {
	key := []byte("12345678901234567890")
	for at, want := range map[int64]string{
		59: "94287082", 1111111109: "07081804", 1111111111: "14050471", 1234567890: "89005924", 2000000000: "69279037",
		20000000000: "65353130",
	} {
		if got := Code(key, Step(time.Unix(at, 0))); got != want[2:] {
			t.Errorf("at %d: %s, want %s", at, got, want[2:])
		}
	}
}

// RFC 4226 appendix D: the counters 0 to 9.
func TestCode_rfc4226(t *testing.T) {
	key := []byte("12345678901234567890")
	for i, want := range []string{"755224", "287082", "359152", "969429", "338314", "254676", "287922", "162583",
		"399871", "520489"} {
		if got := Code(key, int64(i)); got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	key := []byte("12345678901234567890")
	now := time.Unix(1_900_000_015, 0)
	present := Step(now)
	f := func(code string, last int64, want int64) {
		t.Helper()
		got, ok := Check(key, code, now, last)
		if ok != (want != 0) || got != want {
			t.Errorf("%q after %d: %d %v, want %d", code, last-present, got-present, ok, want-present)
		}
	}
	code := func(d int64) string { return Code(key, present+d) }
	f(code(0), 0, present)
	f(code(-1), 0, present-1)
	f(code(1), 0, present+1)
	f(code(-2), 0, 0)
	f(code(2), 0, 0)
	f(" \t"+code(0)+"\n", 0, present)
	f(code(0)[:5], 0, 0)
	f(code(0)+"0", 0, 0)
	f("0"+code(0), 0, 0)
	f("", 0, 0)
	f("abcdef", 0, 0)
	// Once accepted, neither that step nor an earlier one is again.
	f(code(0), present, 0)
	f(code(-1), present, 0)
	f(code(1), present, present+1)
	f(code(0), present+1, 0)
}

func TestText(t *testing.T) {
	key := NewKey()
	text := Text(key)
	if len(key) != 20 || len(text) != 32 || strings.ToUpper(text) != text || strings.Contains(text, "=") {
		t.Errorf("%d bytes as %q", len(key), text)
	}
	if back, err := base32.StdEncoding.DecodeString(text); err != nil || string(back) != string(key) {
		t.Error(back, err)
	}
	if Text(NewKey()) == text {
		t.Error("the same key twice")
	}
}

func TestURI(t *testing.T) {
	key := []byte("12345678901234567890")
	const secret = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
	f := func(issuer, account, want string) {
		t.Helper()
		got := URI(issuer, account, key)
		if got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		u, err := url.Parse(got)
		if err != nil || u.Path != "/"+issuer+":"+account || u.Query().Get("issuer") != issuer ||
			u.Query().Get("secret") != secret {
			t.Errorf("%s reads as %+v, %v", got, u, err)
		}
	}
	f("app.example.org", "mia@example.org",
		"otpauth://totp/app.example.org:mia@example.org?algorithm=SHA1&digits=6&issuer=app.example.org&period=30&secret="+
			secret)
	f("My App", "a b", "otpauth://totp/My%20App:a%20b?algorithm=SHA1&digits=6&issuer=My%20App&period=30&secret="+secret)
	f("A&B=C:D+E/F", "mia+x@example.org?#",
		"otpauth://totp/A%26B%3DC%3AD%2BE%2FF:mia%2Bx@example.org%3F%23?algorithm=SHA1&digits=6&issuer=A%26B%3DC%3AD%2BE%2FF&period=30&secret="+secret)
}

// Whatever a site and a user are called, an app reads just that, and the secret.
func FuzzURI(f *testing.F) {
	for _, s := range []string{"app.example.org", "A&B=C:D+E/F", "", "%2F", "a b\n?#", "\xff", "Bücher & mehr; €"} {
		f.Add(s, "mia@example.org")
		f.Add("app", s)
	}
	key := []byte("12345678901234567890")
	f.Fuzz(func(t *testing.T, issuer, account string) {
		text := URI(issuer, account, key)
		u, err := url.Parse(text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		q := u.Query()
		if u.Scheme != "otpauth" || u.Host != "totp" || u.Path != "/"+issuer+":"+account || u.Fragment != "" ||
			len(q) != 5 ||
			q.Get("issuer") != issuer || q.Get("secret") != Text(key) || strings.Count(u.EscapedPath(), ":") != 1 {
			t.Errorf("%q and %q: %q reads as %+v", issuer, account, text, u)
		}
		for _, c := range []byte(text) {
			if c <= ' ' || c > '~' {
				t.Errorf("%q holds %q", text, c)
			}
		}
	})
}

func TestSVG(t *testing.T) {
	text := URI("app.example.org", "mia@example.org", NewKey())
	svg, err := SVG(text)
	must.Succeed(t, err)
	if strings.ContainsAny(svg, "#%") || !strings.Contains(svg, "<svg ") {
		t.Error(svg)
	}
	code, err := encode(text)
	must.Succeed(t, err)
	// Painted as a browser does, each module has the colour that the code says.
	size := code.Size + 8
	black := make([]bool, size*size)
	var width, rects int
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		must.Succeed(t, err)
		start, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		at := map[string]string{}
		for _, a := range start.Attr {
			at[a.Name.Local] = a.Value
		}
		n := func(name string) (v int) {
			if _, err := fmt.Sscan(at[name], &v); err != nil || v%3 != 0 {
				t.Fatalf("%s=%q", name, at[name])
			}
			return v / 3
		}
		switch start.Name.Local {
		case "svg":
			if width = n("width"); width != n("height") || width != size {
				t.Errorf("%v, want %d modules", at, size)
			}
		case "rect":
			rects++
			for y := n("y"); y < n("y")+n("height"); y++ {
				for x := n("x"); x < n("x")+n("width"); x++ {
					black[y*size+x] = strings.Contains(at["style"], "fill:black")
				}
			}
		}
	}
	if rects < 100 {
		t.Errorf("%d rectangles", rects)
	}
	for y := range size {
		for x := range size {
			if want := code.Black(x-4, y-4); black[y*size+x] != want {
				t.Fatalf("module %d,%d is black: %v, want %v", x, y, !want, want)
			}
		}
	}
	// What is too long for the most redundant level gets another, and in the end an error.
	if _, err := SVG(strings.Repeat("x", 2000)); err != nil {
		t.Error(err)
	}
	if _, err := SVG(strings.Repeat("x", 4000)); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
}
