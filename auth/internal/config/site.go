package config

import (
	"cmp"
	netmail "net/mail"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/mail"
	"gatehouse/shared/httpx"
	"gatehouse/shared/settings"
)

// siteConfig has the settings of how mails and pages show the application.
type siteConfig struct {
	// Name of the product in mails, on pages and in authenticator apps; unset: host of SITE_URL. One line of at
	// most 32 characters.
	Name string `env:"AUTH_SITE_NAME" table:"General"`
	// Logo in mails and on pages: an https URL of a PNG, JPEG or GIF, shown 40 pixels high.
	LogoURL string `env:"AUTH_SITE_LOGO_URL" table:"General"`
	// Colour of buttons in mails and on pages, #rgb or #rrggbb; needs quotes in .env. Their text is white or black,
	// whichever has more contrast. In mails a colour of six digits ends in `a`, so that no program takes it for the
	// code.
	Color string `env:"AUTH_SITE_COLOR" envDefault:"#1d4ed8" table:"General"`
	// E-mail address or https URL that mails and pages name for help.
	Support string `env:"AUTH_SITE_SUPPORT" table:"General"`
	// Languages of mails, SMS and pages; the first is the default. Built in: en, de, fr, es.
	Locales []string `env:"AUTH_SITE_LOCALES" envDefault:"en" table:"General"`
}

var color = regexp.MustCompile(`^#([0-9A-Fa-f]{3}|[0-9A-Fa-f]{6})$`)

const mostSiteName = 32

// siteSettings checks the settings of the site, and returns what mails show of it.
func (c *Config) siteSettings(r *settings.Report) mail.Site {
	s := &c.Site
	if utf8.RuneCountInString(s.Name) > mostSiteName || strings.ContainsFunc(s.Name, notShown) {
		r.Wrong("AUTH_SITE_NAME", "must be one line of at most %d characters", mostSiteName)
	}
	if s.LogoURL != "" && !publicURL(s.LogoURL) {
		r.Wrong("AUTH_SITE_LOGO_URL", "must be an https:// URL, or http:// on this machine")
	}
	if !color.MatchString(s.Color) {
		r.Wrong("AUTH_SITE_COLOR", "must be #rgb or #rrggbb, such as #1d4ed8")
	}
	if s.Support != "" && !publicURL(s.Support) {
		if a, err := netmail.ParseAddress(s.Support); err != nil || a.Address != s.Support {
			r.Wrong("AUTH_SITE_SUPPORT", "must be an e-mail address or an https:// URL")
		}
	}
	return mail.Site{Name: cmp.Or(s.Name, c.siteHost()), LogoURL: s.LogoURL, Color: s.Color, Support: s.Support}
}

// siteHost returns the host, with the port if there is one, of SITE_URL.
func (c *Config) siteHost() string {
	if u, err := url.Parse(c.General.SiteURL); err == nil && u.Host != "" {
		return u.Host
	}
	return c.General.SiteURL
}

// publicURL reports whether text is a URL that may appear in mails.
func publicURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && u.User == nil && !strings.ContainsFunc(text, notShown) &&
		(u.Scheme == "https" || u.Scheme == "http" && httpx.IsLoopbackHost(u.Hostname()))
}

func notShown(c rune) bool { return c < ' ' || c == 0x7f || c == '\u2028' || c == '\u2029' }

// templateFolder reads the templates in AUTH_MAILER_TEMPLATE_DIR; nil if it is not set.
func (c *Config) templateFolder(r *settings.Report) *mail.Folder {
	if c.Mail.Dir == "" {
		return nil
	}
	f, err := mail.ReadFolder(c.Mail.Dir, c.Mail.MaxSize)
	if err != nil {
		r.Wrong("AUTH_MAILER_TEMPLATE_DIR", "%v", err)
		return nil
	}
	for _, w := range f.Warnings {
		r.Warn("AUTH_MAILER_TEMPLATE_DIR: %s", w)
	}
	return f
}

// warnTemplates warns of template files that no mail uses, and of template settings that look like local files.
func (l *Live) warnTemplates(r *settings.Report) {
	if l.Mail.Folder != nil && l.Mail.Languages != nil {
		for _, w := range l.Mail.Folder.Check(&l.Mail) {
			r.Warn("AUTH_MAILER_TEMPLATE_DIR: %s", w)
		}
	}
	for _, w := range l.Mail.Lint() {
		r.Warn("%s", w)
	}
}

// languages returns the languages of mails and SMS, together with the operator's own texts.
func (c *Config) languages(r *settings.Report, f *mail.Folder) *locale.Catalog {
	var own map[string]locale.Strings
	if f != nil {
		own = f.Strings
	}
	all, err := locale.New(c.Site.Locales, own)
	if err != nil {
		r.Wrong("AUTH_SITE_LOCALES", "%v", err)
		return nil
	}
	return all
}
