package locale

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/must"
)

var tags = []string{"en", "de", "fr", "es"}

var (
	variable = regexp.MustCompile(`\.[A-Z][A-Za-z]*`)
	bracket  = regexp.MustCompile(`\{\{.*?\}\}`)
)

// alike are strings that are the same in English, by language: dir is no text.
var alike = map[string]map[string]bool{
	"de": {"months.3": true, "months.7": true, "months.8": true, "months.10": true},
	"fr": {"units.minute.one": true, "units.minute.other": true},
	"es": {},
}

// TestStrings: every language has the keys and variables of English, no more, and nothing that was left untranslated.
func TestStrings(t *testing.T) {
	en := builtIns["en"]()
	size := 0
	for _, tag := range tags {
		data, err := files.ReadFile("strings." + tag + ".json")
		must.Succeed(t, err)
		size += len(data)
		all := builtIns[tag]()
		if unknown := all.Unknown(); len(unknown) > 0 {
			t.Errorf("%s: unknown keys %q", tag, unknown)
		}
		for key, text := range en {
			own := all[key]
			if own == nil {
				t.Errorf("%s lacks %s", tag, key)
				continue
			}
			source, english := own.t.Root.String(), text.t.Root.String()
			words := bracket.ReplaceAllString(source, "")
			if strings.TrimSpace(source) == "" {
				t.Errorf("%s: %s is empty", tag, key)
			}
			if a, b := names(english), names(source); !cmp.Equal(a, b) {
				t.Errorf("%s: %s has the variables %q, want %q", tag, key, b, a)
			}
			if tag != "en" && key != "dir" && (source == english) != alike[tag][key] {
				t.Errorf("%s: %s is %q, as in English: %v", tag, key, source, source == english)
			}
			if tag != "en" && strings.ContainsAny(words, `'"`) {
				t.Errorf("%s: %s has a straight quotation mark: %s", tag, key, words)
			}
			if strings.HasSuffix(key, ".button") && utf8.RuneCountInString(source) > 32 {
				t.Errorf("%s: %s has more than 32 characters: %q", tag, key, source)
			}
			if strings.HasPrefix(source, " ") || strings.HasSuffix(source, " ") || strings.Contains(source, "  ") {
				t.Errorf("%s: %s has blanks too many: %q", tag, key, source)
			}
		}
		c, err := New([]string{tag}, nil)
		must.Succeed(t, err)
		if text := c.Default().SMS("1234567890"); utf8.RuneCountInString(text) > 70 ||
			!strings.HasSuffix(text, " 1234567890") {
			t.Errorf("%s: SMS %q", tag, text)
		}
	}
	if size > 60<<10 {
		t.Errorf("%d bytes of strings, want 60 KiB at most", size)
	}
}

func names(source string) []string {
	list := variable.FindAllString(source, -1)
	slices.Sort(list)
	return slices.Compact(list)
}

func catalog(t *testing.T, own map[string]Strings, tags ...string) *Catalog {
	t.Helper()
	c, err := New(tags, own)
	must.Succeed(t, err)
	return c
}

func parsed(t *testing.T, text string) Strings {
	t.Helper()
	s, err := Parse("x.json", []byte(text))
	must.Succeed(t, err)
	return s
}

func TestDuration(t *testing.T) {
	f := func(tag string, d time.Duration, want string) {
		t.Helper()
		if got := catalog(t, nil, tag).Default().Duration(d); got != want {
			t.Errorf("%s %s: %q, want %q", tag, d, got, want)
		}
	}
	f("en", time.Hour, "1 hour")
	f("en", 90*time.Minute, "90 minutes")
	f("en", 24*time.Hour, "1 day")
	f("en", 36*time.Hour, "36 hours")
	f("en", 61*time.Second, "61 seconds")
	f("en", time.Second, "1 second")
	f("en", 0, "")
	f("en", -time.Hour, "")
	f("de", 48*time.Hour, "2 Tagen")
	f("fr", 15*time.Minute, "15 minutes")
	f("es", time.Hour, "1 hora")
}

func TestTime(t *testing.T) {
	at := time.Date(2026, 11, 1, 20, 12, 0, 0, time.FixedZone("", 3600))
	for tag, want := range map[string]string{
		"en": "1 November 2026 at 19:12 UTC", "de": "1. November 2026 um 19:12 Uhr UTC",
		"fr": "1er novembre 2026 à 19:12 UTC", "es": "1 de noviembre de 2026 a las 19:12 UTC",
	} {
		if got := catalog(t, nil, tag).Default().Time(at); got != want {
			t.Errorf("%s: %q, want %q", tag, got, want)
		}
	}
	if got := english.Time(time.Time{}); got != "" {
		t.Errorf("no time: %q", got)
	}
}

func TestParseAccept(t *testing.T) {
	f := func(header string, want ...string) {
		t.Helper()
		if d := cmp.Diff(want, ParseAccept(header)); d != "" {
			t.Errorf("%q: %s", header, d)
		}
	}
	f("")
	f("*")
	f("de", "de")
	f("fr-CH, fr;q=0.9, en;q=0.8, de;q=0.7, *;q=0.5", "fr-CH", "fr", "en", "de")
	f("en;q=0.1,de;q=1.000 , fr ; Q=0.25", "de", "fr", "en")
	f("de;q=0, en", "en")
	f("de;q=0.000,en;q=2,fr;q=1.1,es;q=.5,it;q=0.1234,nl;q=x,pt;level=1,sv;q=0.5", "sv")
	f("a-,-b,1a,abcdefghi,a b,\x00,de", "de")
	f("a,b,c,d,e,f,g,h,i,j;q=0.5,k", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j")
	f(strings.Repeat(" ", 190)+"en, "+"de-Latn-AT-1996", "en") // cut within the second
	f(strings.Repeat("x", 300))
}

func TestTag(t *testing.T) {
	if l := catalog(t, nil, "de_AT").Default(); l.Tag != "de-AT" {
		t.Errorf("a tag with an underscore is sent as %s", l.Tag)
	}
}

func TestChoose(t *testing.T) {
	c := catalog(t, nil, "en", "de", "fr-CA", "es")
	f := func(metadata, accept, want string) {
		t.Helper()
		if got := c.Choose(c.Candidates(json.RawMessage(metadata), accept)...).Tag; got != want {
			t.Errorf("%s, %q: %s, want %s", metadata, accept, got, want)
		}
	}
	f("", "", "en")
	f("", "de-AT-1996,en", "de")
	f("", "DE_at", "de")
	f("", "it, es;q=0.1", "es")
	f("", "fr", "en") // only what is set is chosen
	f("", "fr-ca", "fr-CA")
	f(`{"locale":"de"}`, "es", "de")
	f(`{"Locale":"de"}`, "es", "es")
	f(`{"locale":"it"}`, "es", "es")
	f(`{"locale":7}`, "es", "es")
	f(`["locale"]`, "es", "es")
	f(`{"locale":"`+strings.Repeat("de-", 12)+`de"}`, "es", "es")
	one := catalog(t, nil, "de")
	if got := one.Candidates(json.RawMessage(`{"locale":"en"}`), "en"); got != nil {
		t.Errorf("one language: %q", got)
	}
	var none *Catalog
	if none.Choose("de").Tag != "en" || none.Candidates(nil, "de") != nil {
		t.Error("no catalog is not English")
	}
}

// TestCatalog_layers: a string comes from the language's own file, the built-in language, its language without subtag,
// and English, in this order.
func TestCatalog_layers(t *testing.T) {
	own := map[string]Strings{
		"de-at": parsed(t, `{"sms":"AT {{ .Code }}"}`), "de": parsed(t, `{"sms":"D","when":"D {{ .Year }}"}`),
		"nl": parsed(t, `{"dir":"rtl","factors":{"totp":"{{ .Code.x }}"}}`),
	}
	c := catalog(t, own, "de-AT", "nl", "de-CH")
	at, nl, ch := c.Choose("de-AT"), c.Choose("nl"), c.Choose("de-CH")
	if got := at.SMS("1"); got != "AT 1" {
		t.Error(got)
	}
	if got := at.Time(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)); got != "D 2026" {
		t.Error(got)
	}
	if got := at.Duration(time.Hour); got != "1 Stunde" {
		t.Error(got)
	}
	if got := ch.SMS("1"); got != "D" {
		t.Error(got)
	}
	if nl.Dir() != "rtl" || at.Dir() != "ltr" || nl.SMS("1") != "Your code is 1" {
		t.Errorf("%s, %s, %s", nl.Dir(), at.Dir(), nl.SMS("1"))
	}
	text, err := nl.Text("factors.totp", map[string]any{"Code": 7})
	if text != "authenticator app" || err == nil || !strings.HasPrefix(err.Error(), "x.json:1: ") {
		t.Errorf("a string that can't be rendered: %q, %v", text, err)
	}
	for _, bad := range []string{"xx", "../de", "", "pt-BR", "de-"} {
		if _, err := New([]string{"en", bad}, own); err == nil {
			t.Errorf("%q has strings", bad)
		}
	}
	if _, err := New(nil, nil); err == nil {
		t.Error("no language is one")
	}
}

func TestParse(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		s, err := Parse("strings.xx.json", []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		_ = s
	}
	f("[]", "strings.xx.json:1: it is no JSON object")
	f("{\n\"mails\": {\"invite\": {", "strings.xx.json:2: it ends before its last brace is closed")
	f("", "strings.xx.json:1: it ends before its last brace is closed")
	f("{\n\"sms\": 7}", "strings.xx.json:2: sms is no text")
	f("{\n\"a\": {\"b\": \n\"{{\"}}", "strings.xx.json:3: a.b: ")
	f("{\"a\"\n\n", "strings.xx.json:")
	f(strings.Repeat(`{"a":`, 9)+`""`+strings.Repeat("}", 9), "strings.xx.json:1: it is nested too deep")
	f("{\"a\": \"\xff\"}", "strings.xx.json: it is not UTF-8")
	s, err := Parse("x", []byte("\uFEFF"+`{"sms":"{{","months":["a","b"],"more":{"x":"y"}}`))
	if err == nil || s["sms"] != nil || s["months.1"] == nil || !cmp.Equal(s.Unknown(), []string{"more.x"}) {
		t.Errorf("%v, %v", s, err)
	}
}

// FuzzAccept: whatever a client sends, what comes out are language tags.
func FuzzAccept(f *testing.F) {
	f.Add("fr-CH, fr;q=0.9, *;q=0.5")
	f.Add("de;q=0.x,,;=")
	c, err := New(tags, nil)
	must.Succeed(f, err)
	f.Fuzz(func(t *testing.T, header string) {
		list := ParseAccept(header)
		if len(list) > mostRanges {
			t.Errorf("%q: %d languages", header, len(list))
		}
		for _, tag := range list {
			if !ValidTag(tag) || !strings.Contains(header, tag) {
				t.Errorf("%q: %q", header, tag)
			}
		}
		if c.Choose(list...) == nil {
			t.Error("no language")
		}
	})
}

// FuzzParse: no file of strings makes the daemon panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"mails":{"invite":{"subject":"{{ .SiteName }}"}},"months":["a"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, _ := Parse("x.json", data)
		s.Unknown()
	})
}
