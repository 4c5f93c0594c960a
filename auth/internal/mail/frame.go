package mail

import (
	_ "embed" // for the layouts of mails
	"maps"
	"math"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"unicode"

	"gatehouse/auth/internal/locale"
)

//go:embed layout.html
var layoutHTML string

//go:embed layout.txt
var layoutText string

// The built-in layouts are parsed when the first mail needs them, not when the daemon starts. They panic on an error,
// which can only be a bug in the daemon.
var (
	builtInLayout = sync.OnceValue(func() *body {
		b, err := parseBody(layoutHTML)
		if err != nil {
			panic(err)
		}
		return b
	})
	builtInText = sync.OnceValue(func() *template.Template {
		return template.Must(template.New("layout.txt").Parse(layoutText))
	})
)

// The values of the setting AUTH_MAILER_SHOW: whether mails show a link, a code, or both.
const (
	ShowLink = "link"
	ShowBoth = "both"
	ShowCode = "code"
)

// Site is the name and the look of the operator's site in mails.
type Site struct {
	Name, LogoURL string
	// Color is the color of buttons, as #rgb or #rrggbb.
	Color string
	// Support is an email address or a URL where users get help; "" for none.
	Support string
}

// SupportURL returns the URL of a link to Support: a mailto: URL if Support is an email address.
func (s *Site) SupportURL() string {
	if strings.Contains(s.Support, "://") {
		return s.Support
	}
	return "mailto:" + s.Support
}

// stringsKey returns the prefix of the keys of the strings that belong to the mail's kind, such as "mails.recovery.".
func (p *Payload) stringsKey() string {
	key := "mails." + strings.ToLower(p.Kind.Setting())
	if p.Kind == EmailChange && p.Vars.SendingTo != p.Vars.NewEmail {
		key += "_current"
	}
	return key + "."
}

// addSite adds the variables that are not stored in the payload. They come from the site's settings, the language, and
// the times in the mail's row of the table outbox.
func (v variables) addSite(site Site, l *locale.Language, p *Payload) {
	v["SiteName"], v["LogoURL"], v["Color"], v["Support"], v["Locale"] = site.Name, site.LogoURL,
		unlikeCode(site.Color), site.Support, l.Tag
	v["ExpiresIn"], v["When"] = "", l.Time(p.Ordered)
	if !p.Expires.IsZero() {
		v["ExpiresIn"] = l.Duration(p.Expires.Sub(p.Ordered))
	}
	v["ProviderName"], v["FactorName"] = providerName(p.Vars.Provider, l), factorName(p.Vars.FactorType, l)
}

// unlikeCode returns a color that cannot be mistaken for a code: programs may take the first six digits of a mail for
// its code. A color of six decimal digits is replaced by a nearly equal color that ends in a letter.
func unlikeCode(color string) string {
	if len(color) != len("#rrggbb") || strings.ContainsAny(color, "abcdefABCDEF") {
		return color
	}
	return color[:6] + "a"
}

// providerNames are the names of the built-in identity providers as mails show them.
var providerNames = map[string]string{
	"azure": "Microsoft", "github": "GitHub", "gitlab": "GitLab", "linkedin": "LinkedIn", "linkedin_oidc": "LinkedIn",
	"slack_oidc": "Slack", "workos": "WorkOS", "apple": "Apple", "bitbucket": "Bitbucket", "discord": "Discord",
	"facebook": "Facebook", "figma": "Figma", "google": "Google", "keycloak": "Keycloak", "notion": "Notion",
	"slack": "Slack", "snapchat": "Snapchat", "spotify": "Spotify", "twitch": "Twitch", "twitter": "X (Twitter)",
}

func providerName(provider string, l *locale.Language) string {
	if provider == "phone" || provider == "email" {
		return factorName(provider, l)
	}
	if name := providerNames[provider]; name != "" {
		return name
	}
	return provider
}

func factorName(kind string, l *locale.Language) string {
	if name, _ := l.Text("factors."+kind, nil); name != "" {
		return name
	}
	return kind
}

// sentenceEnd temporarily replaces the blank after a full stop inside of a value. So frame can find the end of the
// first sentence, which is a full stop and a real blank. U+E000 is a private-use character.
const sentenceEnd = "\uE000"

// tame returns the variables for use in translated strings. Values have no line breaks and no characters that change
// the direction of the text after them, and sentenceEnd stands for the blank after a full stop.
func (v variables) tame() variables {
	tame := maps.Clone(v)
	for name, value := range v {
		if text, ok := value.(string); ok {
			text = strings.Map(func(r rune) rune {
				if unicode.Is(unicode.Bidi_Control, r) || r == '\uE000' {
					return -1
				}
				return r
			}, locale.OneLine(text))
			tame[name] = strings.ReplaceAll(text, ". ", "."+sentenceEnd)
		}
	}
	return tame
}

// frame returns the sentences of a built-in mail by the names under which the layouts use them.
func (d *draft) frame() map[string]string {
	d.vars["Addressee"] = d.p.To
	values := d.vars.tame()
	raw := func(key string) string { return d.text(key, values) }
	say := func(key string) string { return strings.ReplaceAll(raw(key), sentenceEnd, " ") }
	own, show := d.p.stringsKey(), d.t.Show
	preheader, _, more := strings.Cut(raw(own+"body"), ". ")
	if more {
		preheader += "."
	}
	f := map[string]string{
		"Dir": d.lang.Dir(), "Subject": d.subjectText(), "Preheader": strings.ReplaceAll(preheader, sentenceEnd, " "),
		"Heading": say(own + "heading"), "Body": say(own + "body"), "Closing": say(own + "closing"),
		"ButtonColor": Contrasting(d.t.Site.Color), "Footer": say("common.footer"),
	}
	link := d.p.Kind.hasLink() && d.p.Vars.ConfirmationURL != "" && (show != ShowCode || d.p.Kind == Invite)
	code := d.p.Vars.Token != "" && (d.p.Kind == Reauthentication || d.p.Kind.hasLink() && show != ShowLink)
	lifetime := ""
	if link {
		f["Button"], f["URL"], f["URLIntro"] = say(own+"button"), d.p.Vars.ConfirmationURL, say("common.url")
		lifetime = "link"
		if strings.HasPrefix(d.p.Vars.TokenHash, "pkce_") {
			f["Device"] = say("common.device")
			if code {
				f["Device"] += " " + say("common.other_device")
			}
		}
	}
	if code {
		f["Code"], f["CodeIntro"], f["CodeWarning"] = d.p.Vars.Token, say("common.code"), say("common.share")
		lifetime = "code"
		if link {
			lifetime, f["CodeIntro"] = "both", say("common.or_code")
		}
	}
	if lifetime != "" && values["ExpiresIn"] != "" {
		f["Lifetime"] = say("common.lifetime_" + lifetime)
	}
	if d.t.Site.Support != "" {
		f["Support"], f["SupportURL"] = say("common.support"), d.t.Site.SupportURL()
	}
	return f
}

// builtIn returns the HTML and the plain text of a mail that has no template of its own. The layout is layout.html of
// the operator's folder, if there is one that can be rendered, or else the built-in layout.
func (d *draft) builtIn() (html, text string) {
	values := maps.Clone(d.vars)
	frame := d.frame()
	values["Frame"] = frame
	html, err := "", error(nil)
	own := d.t.Folder != nil && d.t.Folder.layout != nil
	if own {
		if html, err = d.t.Folder.layout.render(values); err != nil {
			d.fault("the layout of mails can't be rendered; using the built-in one", "file", "layout.html", "error",
				templateMistake(err))
		}
	}
	if !own || err != nil {
		if html, err = builtInLayout().render(values); err != nil {
			// This does not occur: only a value of 2 MiB could cause this error, and addresses have at most 255 bytes.
			d.fault("a built-in body can't be rendered", "error", templateMistake(err))
		}
	}
	if support := d.t.Site.Support; strings.Contains(support, "://") { // mail programs would link the full stop
		frame["Support"] = strings.Replace(frame["Support"], support+".", support, 1)
	}
	var out locale.Limited
	if err := builtInText().Execute(&out, values); err != nil {
		d.fault("a built-in text can't be rendered", "error", templateMistake(err))
	}
	return html, strings.ToValidUTF8(out.String(), "\uFFFD")
}

// Contrasting returns white or black, whichever has more contrast to the given color (WCAG 2.2, relative luminance).
func Contrasting(color string) string {
	digits := strings.TrimPrefix(color, "#")
	if len(digits) == 3 {
		digits = strings.Repeat(digits[:1], 2) + strings.Repeat(digits[1:2], 2) + strings.Repeat(digits[2:], 2)
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil {
		return "white"
	}
	luminance := 0.0
	for i, share := range []float64{0.0722, 0.7152, 0.2126} {
		part := float64(n>>(8*i)&0xff) / 255
		if part <= 0.04045 {
			part /= 12.92
		} else {
			part = math.Pow((part+0.055)/1.055, 2.4)
		}
		luminance += share * part
	}
	if 1.05/(luminance+0.05) >= (luminance+0.05)/0.05 {
		return "white"
	}
	return "black"
}
