package mail

import (
	"encoding/json"
	"encoding/xml"
	"flag"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/auth/internal/locale"
	"gatehouse/shared/must"
)

var update = flag.Bool("update", false, "write the golden files of built-in mails again")

// ordered is when all mails of these tests were.
var ordered = time.Date(2026, 11, 22, 19, 12, 0, 0, time.UTC)

var acme = Site{Name: "Acme", LogoURL: "https://app.acme.test/logo.png", Color: "#1d4ed8",
	Support: "https://app.acme.test/help"}

func languages(t *testing.T, tags ...string) *locale.Catalog {
	t.Helper()
	c, err := locale.New(tags, nil)
	must.Succeed(t, err)
	return c
}

// sample is a mail of the kind as flows order it.
func sample(kind Kind, tag string) Payload {
	v := everything()
	v.SendingTo = v.NewEmail
	v.TokenHash = "abc"
	p := Payload{To: v.Email, Kind: kind, Vars: v, Locales: []string{tag}, Ordered: ordered,
		Expires: ordered.Add(time.Hour)}
	if kind == EmailChange {
		p.To = v.NewEmail
	}
	return p
}

// variant is one way that built-in mails can look.
type variant struct {
	name    string
	show    string
	site    Site
	payload func(*Payload)
	kinds   []Kind
}

var withLink = []Kind{Invite, Confirmation, Recovery, MagicLink, EmailChange}

func variants() []variant {
	plain := Site{Name: "app.acme.test", Color: "#1d4ed8"}
	same := func(*Payload) {}
	return []variant{
		{"", ShowLink, plain, same, append([]Kind{Test}, Kinds...)},
		{"current", ShowLink, plain, func(p *Payload) { p.To, p.Vars.SendingTo = p.Vars.Email, p.Vars.Email },
			[]Kind{EmailChange}},
		{"both", ShowBoth, acme, same, withLink},
		{"code", ShowCode, acme, same, withLink},
		{"pkce", ShowLink, acme, func(p *Payload) { p.Vars.TokenHash = "pkce_abc" }, []Kind{MagicLink}},
		{"pkce-both", ShowBoth, acme, func(p *Payload) { p.Vars.TokenHash = "pkce_abc" }, []Kind{MagicLink}},
		{"first-phone", ShowLink, acme, func(p *Payload) { p.Vars.OldPhone = "" }, []Kind{PhoneChanged}},
	}
}

// Programs take the first six digits of a mail for its code, whatever the colors are.
func TestBuiltIn_colorOfDigits(t *testing.T) {
	r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
	r.Apply(Settings{Show: ShowBoth, Site: Site{Name: "Acme", Color: "#336699"}, Languages: languages(t, "en")})
	p := sample(Recovery, "en")
	m, err := r.Render(t.Context(), p)
	if got := sixDigits.FindString(m.HTML); err != nil || got != p.Vars.Token {
		t.Errorf("the first six digits are %s, want the code %s (%v)", got, p.Vars.Token, err)
	}
}

// eachBuiltIn calls f with every built-in mail in every language.
func eachBuiltIn(t *testing.T, f func(name string, v variant, p Payload, m Message)) {
	t.Helper()
	for _, v := range variants() {
		r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
		r.Apply(Settings{Show: v.show, Site: v.site, Languages: languages(t, "en", "de", "fr", "es")})
		for _, tag := range []string{"en", "de", "fr", "es"} {
			for _, kind := range v.kinds {
				p := sample(kind, tag)
				v.payload(&p)
				m, err := r.Render(t.Context(), p)
				if err != nil || m.Locale != tag || len(m.Faults) > 0 {
					t.Fatalf("%s %s: %v, language %s, fallback %v", kind, tag, err, m.Locale, m.Faults)
				}
				name := string(kind)
				if v.name != "" {
					name += "." + v.name
				}
				f(name+"."+tag, v, p, m)
			}
		}
	}
}

// TestBuiltIn_golden compares subject and text of every mail in every language, and the HTML of every kind in English
// and of one in each other language.
func TestBuiltIn_golden(t *testing.T) {
	compare := func(name, got string) {
		t.Helper()
		path := filepath.Join("testdata", "golden", name)
		if *update {
			must.Succeed(t, os.WriteFile(path, []byte(got), 0o644))
		}
		want, err := os.ReadFile(path)
		if d := cmp.Diff(string(want), got); err != nil || d != "" {
			t.Errorf("%s: %v %s", name, err, d)
		}
	}
	texts := map[string]*strings.Builder{}
	eachBuiltIn(t, func(name string, v variant, p Payload, m Message) {
		tag := m.Locale
		if texts[tag] == nil {
			texts[tag] = new(strings.Builder)
		}
		fmt.Fprintf(texts[tag], "==== %s\nSubject: %s\n\n%s", name, m.Subject, m.Text)
		if tag == "en" && v.name == "" || v.name == "both" && p.Kind == MagicLink {
			compare(name+".html", m.HTML)
		}
	})
	for tag, text := range texts {
		compare("texts."+tag+".txt", text.String())
	}
}

var (
	sixDigits = regexp.MustCompile(`\b[0-9]{6}\b`)
	anyURL    = regexp.MustCompile(`https?://[^\s"'<>]+`)
	hrefs     = regexp.MustCompile(`href="([^"]*)"`)
)

// TestBuiltIn_rules: what every built-in mail keeps to, in every language.
func TestBuiltIn_rules(t *testing.T) {
	eachBuiltIn(t, func(name string, v variant, p Payload, m Message) {
		shown := html.UnescapeString(m.HTML)
		hasLink := p.Kind.hasLink() && (v.show != ShowCode || p.Kind == Invite)
		hasCode := p.Kind == Reauthentication || p.Kind.hasLink() && v.show != ShowLink
		if len(m.HTML) > 14<<10 || len(m.Text) > 2<<10 {
			t.Errorf("%s: %d bytes of HTML, %d of text", name, len(m.HTML), len(m.Text))
		}
		if d := wellFormed(m.HTML); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		first := ""
		if all := hrefs.FindAllStringSubmatch(m.HTML, -1); len(all) > 0 {
			first = html.UnescapeString(all[0][1])
		}
		if link := p.Vars.ConfirmationURL; hasLink != (first == link) || hasLink != (anyURL.FindString(m.Text) == link) {
			t.Errorf("%s: first href %q, first URL of the text %q", name, first, anyURL.FindString(m.Text))
		}
		if code := p.Vars.Token; hasCode != (sixDigits.FindString(m.HTML) == code) ||
			hasCode != (sixDigits.FindString(m.Text) == code) || hasCode != strings.Contains(m.HTML, `id="code"`) {
			t.Errorf("%s: first six digits %q, %q", name, sixDigits.FindString(m.HTML), sixDigits.FindString(m.Text))
		}
		if strings.Contains(m.Subject, p.Vars.Token) != (p.Kind == Reauthentication) {
			t.Errorf("%s: subject %q", name, m.Subject)
		}
		for _, u := range anyURL.FindAllString(shown, -1) {
			if !strings.HasPrefix(u, "https://auth.acme.test/") && !strings.HasPrefix(u, "https://app.acme.test/") {
				t.Errorf("%s: URL %s", name, u)
			}
		}
		if strings.Contains(m.Text, acme.Support+".") || strings.Contains(m.HTML+m.Text, "{{") ||
			strings.Contains(m.HTML, "Zgotmpl") || strings.Contains(m.Text, "<no value>") ||
			strings.Contains(m.Text, "\n\n\n") || strings.Contains(m.Text, "  ") {
			t.Errorf("%s:\n%s\n%s", name, m.HTML, m.Text)
		}
		flat := strings.Join(strings.Fields(m.Text), " ")
		for _, sentence := range strings.Split(plainText(m.HTML), "\n\n") {
			sentence = strings.TrimSpace(sentence)
			words, _, linked := strings.Cut(sentence, ": http") // plainText writes links behind their words
			if sentence = strings.TrimSuffix(words, "."); linked && strings.Contains(words, "app.acme.test/help") {
				sentence = strings.TrimSuffix(words, ".")
			}
			sentence = strings.Join(strings.Fields(sentence), " ")
			if hasLink && !strings.Contains(flat, sentence) && isURLIntro(m.Locale, sentence) {
				continue // of the button, in whose place the text has the URL
			}
			if !strings.Contains(flat, sentence) {
				t.Errorf("%s: the text lacks %q:\n%s", name, sentence, m.Text)
			}
		}
	})
}

func isURLIntro(tag, sentence string) bool {
	c, err := locale.New([]string{tag}, nil)
	if err != nil {
		return false
	}
	text, _ := c.Default().Text("common.url", nil)
	return strings.Join(strings.Fields(text), " ") == sentence
}

// wellFormed says which element is not closed, or holds an attribute twice.
func wellFormed(document string) string {
	d := xml.NewDecoder(strings.NewReader(document))
	d.Entity = xml.HTMLEntity
	for {
		token, err := d.Token()
		if err == io.EOF {
			return ""
		}
		if err != nil {
			return err.Error()
		}
		if e, ok := token.(xml.StartElement); ok {
			seen := map[string]bool{}
			for _, a := range e.Attr {
				if seen[a.Name.Local] {
					return e.Name.Local + " has " + a.Name.Local + " twice"
				}
				seen[a.Name.Local] = true
			}
		}
	}
}

// contrast is that of WCAG 2.2.
func contrast(a, b string) float64 {
	light := func(color string) float64 {
		sum := 0.0
		for i, share := range []float64{0.2126, 0.7152, 0.0722} {
			n, err := strconv.ParseUint(color[1+2*i:3+2*i], 16, 8)
			if err != nil {
				panic(err)
			}
			c := float64(n) / 255
			if c <= 0.04045 {
				c /= 12.92
			} else {
				c = math.Pow((c+0.055)/1.055, 2.4)
			}
			sum += share * c
		}
		return sum
	}
	x, y := light(a)+0.05, light(b)+0.05
	return max(x, y) / min(x, y)
}

// TestBuiltIn_contrast: text of each class on each ground that it stands on, in both palettes.
func TestBuiltIn_contrast(t *testing.T) {
	dark := func(class, property string) string {
		m := regexp.MustCompile(`\n  \.` + class + ` \{[^}]*\b` + property + `: (#[0-9a-f]{6})`).
			FindStringSubmatch(layoutHTML)
		if m == nil {
			t.Fatalf("no dark %s of %s", property, class)
		}
		if !strings.Contains(layoutHTML, "[data-ogsc] ."+class+" {") {
			t.Errorf("Outlook's dark mode lacks %s", class)
		}
		return m[1]
	}
	light := func(class, property string) string {
		m := regexp.MustCompile(`class="` + class + `"[^>]*[";]` + property + `:(#[0-9a-f]{6})`).
			FindStringSubmatch(layoutHTML)
		if m == nil {
			t.Fatalf("no light %s of %s", property, class)
		}
		return m[1]
	}
	for _, p := range []func(class, property string) string{dark, light} {
		for _, pair := range [][2]string{{"text", "card"}, {"muted", "card"}, {"muted", "ground"}, {"code", "code"}} {
			text, ground := p(pair[0], "color"), p(pair[1], "background-color")
			if c := contrast(text, ground); c < 4.5 {
				t.Errorf("%s on %s: %s on %s is %.2f", pair[0], pair[1], text, ground, c)
			}
		}
	}
	hexOf := map[string]string{"white": "#ffffff", "black": "#000000"}
	for _, color := range []string{"#1d4ed8", "#ffffff", "#000000", "#777777", "#fde047", "#f00f00"} {
		if c := contrast(hexOf[Contrasting(color)], color); c < 4.5 {
			t.Errorf("%s on %s: %.2f", Contrasting(color), color, c)
		}
	}
	if Contrasting("#fff") != "black" || Contrasting("#00c") != "white" {
		t.Error("short colours")
	}
}

// TestBuiltIn_factorNames: every kind of factor has a name for people in every language.
func TestBuiltIn_factorNames(t *testing.T) {
	tags := []string{"en", "de", "fr", "es"}
	r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
	r.Apply(Settings{Site: acme, Languages: languages(t, tags...)})
	for _, tag := range tags {
		for _, kind := range []string{"totp", "phone", "webauthn", "recovery_code"} {
			p := sample(FactorEnrolled, tag)
			p.Vars.FactorType = kind
			if m, err := r.Render(t.Context(), p); err != nil || strings.Contains(m.Text, "("+kind+")") && kind != "phone" {
				t.Errorf("%s, %s: %v\n%s", tag, kind, err, m.Text)
			}
		}
	}
}

// TestBuiltIn_hostile: what users write stays text, adds no line and turns nothing around.
func TestBuiltIn_hostile(t *testing.T) {
	r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
	r.Apply(Settings{Show: ShowBoth, Site: acme, Languages: languages(t, "en", "de")})
	for _, email := range []string{
		`"<script>alert(1)</script>"@acme.test`, "a\"b@acme.test", "\u202Egpj.exe@acme.test", "a. b\n\nc@acme.test",
		strings.Repeat("a", 240) + "@acme.test", "{{.Token}}@acme.test",
	} {
		for _, kind := range Kinds {
			p := sample(kind, "en")
			p.To, p.Vars.Email, p.Vars.NewEmail, p.Vars.SendingTo, p.Vars.OldEmail = email, email, email, email, email
			p.Vars.Provider, p.Vars.FactorType = email, email
			m, err := r.Render(t.Context(), p)
			if err != nil || len(m.Faults) > 0 {
				t.Fatalf("%s: %v, %v", email, err, m.Faults)
			}
			if strings.Contains(m.HTML, "<script") || strings.Contains(m.HTML+m.Text, "\u202E") ||
				wellFormed(m.HTML) != "" || strings.Contains(m.Text, "\n\nc@") || strings.Contains(m.HTML, "\uE000") {
				t.Errorf("%s %s:\n%s\n%s", kind, email, m.HTML, m.Text)
			}
		}
	}
	for _, locale := range []string{`1`, `null`, `[]`, `{}`, `true`, `"de\u0000"`, `"../de"`, `""`, `"de<"`} {
		c := languages(t, "en", "de")
		data := json.RawMessage(`{"locale":` + locale + `}`)
		if l := c.Choose(c.Candidates(data, "")...); l.Tag != "en" {
			t.Errorf("locale %s: %s", locale, l.Tag)
		}
		if m, err := r.Render(t.Context(), Payload{Kind: Recovery, Vars: Vars{Data: data}}); err != nil ||
			m.Locale != "en" {
			t.Errorf("locale %s: %v, %s", locale, err, m.Locale)
		}
	}
}

// TestBuiltIn_preheader: it is the body's first sentence, also where a value holds a full stop.
func TestBuiltIn_preheader(t *testing.T) {
	r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
	r.Apply(Settings{Site: Site{Name: "St. Mary", Color: "#000000"}})
	m, err := r.Render(t.Context(), sample(Recovery, "en"))
	must.Succeed(t, err)
	_, rest, _ := strings.Cut(m.HTML, "mso-hide:all\">")
	if got, _, _ := strings.Cut(rest, "</div>"); got !=
		"Someone asked to reset the password for ada@acme.test at St. Mary." {
		t.Errorf("%q", got)
	}
}
