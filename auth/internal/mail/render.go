package mail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/outbound"
)

// Message is a rendered mail, ready to be sent.
type Message struct {
	// ID is the id of the mail's row in the outbox. The Message-ID header is made of it, so it is the same at every
	// attempt to send the mail.
	ID uuid.UUID
	// At is when the mail was ordered; it becomes the Date header.
	At                  time.Time
	Kind                Kind
	To                  string
	Subject, HTML, Text string
	// Locale is the language tag of Subject, HTML and Text.
	Locale string
	// Faults describe texts of the operator that could not be used for this mail.
	Faults []string
	// Link and Code are the link and the code in the mail, or "" if the kind has none. The dev mailbox shows them.
	Link, Code string
}

// Sender sends a rendered mail. If the error is nil, the receiver has accepted the mail. If it is a *Refused, the
// receiver will never accept the mail, so it need not be sent again.
type Sender interface {
	Send(ctx context.Context, m Message) error
}

// Settings are the settings of the operator's texts. All of them may change while the daemon runs. Fields without an
// env tag are computed from other settings.
type Settings struct {
	// SiteURL is AUTH_SITE_URL, to which relative URLs of templates are appended.
	SiteURL string
	Site    Site
	// What built-in mails show: link, both (link and code), or code (alone, for applications with a field for it).
	Show string `env:"AUTH_MAILER_SHOW" envDefault:"link" oneof:"link both code" table:"Mailer"`
	// Languages are the languages of built-in mails; nil: English only.
	Languages *locale.Catalog
	// Folder of templates and translations: layout.html, strings.de.json, magic_link.html, magic_link.de.html.
	Dir string `env:"AUTH_MAILER_TEMPLATE_DIR" table:"Mailer"`
	// Folder has the contents of the folder Dir; nil: none.
	Folder *Folder
	// Subjects are the templates of subjects. Kinds that are not in the map have the default subject.
	Subjects map[Kind]string
	// Templates are the URLs of the templates of bodies. A value that does not begin with http or file: is appended to
	// SiteURL.
	Templates map[Kind]string
	// Maximum size of a template's body, in bytes.
	MaxSize int64 `env:"AUTH_MAILER_TEMPLATE_MAX_SIZE" envDefault:"1000000" min:"1" table:"Mailer"` // 0: 1,000,000
	// Time after which a loaded template is loaded again.
	MaxAge time.Duration `env:"AUTH_MAILER_TEMPLATE_MAX_AGE" envDefault:"10m" min:"1s" table:"Mailer"` // 0: 10 min
	// Pause before a template that could not be loaded is loaded again.
	Retry time.Duration `env:"AUTH_MAILER_TEMPLATE_RETRY_INTERVAL" envDefault:"10s" min:"1s" table:"Mailer"` // 0: 10 s
	// Templates are reloaded before a mail needs them; false: the first mail that needs a template after MAX_AGE loads
	// it.
	Reloading bool `env:"AUTH_MAILER_TEMPLATE_RELOADING_ENABLED" envDefault:"false" table:"Mailer"`
	// Templates that no mail has needed for this time are not reloaded.
	MaxIdle time.
		Duration `env:"AUTH_MAILER_TEMPLATE_RELOADING_MAX_IDLE" envDefault:"20m" min:"1s" table:"Mailer"` // 0: 20 min
}

// Check returns an error that names the settings whose subjects are not templates or whose template URLs are malformed.
// The daemon runs nevertheless, with the default texts instead.
func (s Settings) Check() error {
	var bad []error
	for _, kind := range Kinds {
		if text := s.Subjects[kind]; text != "" {
			if _, err := locale.ParseText(text); err != nil {
				bad = append(bad, fmt.Errorf("AUTH_MAILER_SUBJECTS_%s: %w", kind.Setting(), err))
			}
		}
		if location := s.Templates[kind]; location != "" {
			if path, local := filePath(location); local {
				if path == "" {
					bad = append(bad, fmt.Errorf("AUTH_MAILER_TEMPLATES_%s: %q is no file of this machine: write file:///…",
						kind.Setting(), location))
				}
			} else if u, err := url.Parse(s.absolute(location)); err != nil || u.Host == "" || u.Scheme != "http" &&
				u.Scheme != "https" {
				bad = append(bad, fmt.Errorf("AUTH_MAILER_TEMPLATES_%s: %q is no URL", kind.Setting(), location))
			}
		}
	}
	return errors.Join(bad...)
}

// Lint returns warnings about values of AUTH_MAILER_TEMPLATES_* that look like files of this machine but count as paths
// below the site's URL.
func (s Settings) Lint() (warnings []string) {
	for _, kind := range Kinds {
		location := s.Templates[kind]
		if _, local := filePath(location); location == "" || local || strings.HasPrefix(location, "http") {
			continue
		}
		u, err := url.Parse(location)
		scheme := err == nil && u.Scheme != ""
		info, err := os.Stat(location)
		if scheme || err == nil && info.Mode().IsRegular() || strings.HasPrefix(location, "./") ||
			strings.HasPrefix(location, "../") || strings.HasPrefix(location, "~") {
			warnings = append(warnings, fmt.Sprintf("AUTH_MAILER_TEMPLATES_%s=%s is looked for below AUTH_SITE_URL; for a "+
				"file of this machine write file:///…", kind.Setting(), location))
		}
	}
	return warnings
}

// fixed reports whether a setting overrides the subject or the body of a kind. Mails of such a kind are not translated.
func (s Settings) fixed(kind Kind) bool { return s.Subjects[kind] != "" || s.Templates[kind] != "" }

// absolute returns the URL of a template. A value that is neither a file: URL nor begins with http is appended to the
// site's URL.
func (s Settings) absolute(location string) string {
	if _, local := filePath(location); local || strings.HasPrefix(location, "http") {
		return location
	}
	return strings.TrimRight(s.SiteURL, "/") + "/" + strings.TrimLeft(location, "/")
}

// RendererOptions are the dependencies of a Renderer.
type RendererOptions struct {
	// Now is the clock that determines the age of templates; nil: time.Now.
	Now func() time.Time
	// Log receives errors in the operator's texts; nil: they are not logged.
	Log *slog.Logger
	// Watch is called for each load of a template from a URL; nil: off.
	Watch outbound.Watch
}

// Renderer makes Messages from Payloads. It is safe for concurrent use.
type Renderer struct {
	now   func() time.Time
	log   *slog.Logger
	fetch *fetcher
	texts atomic.Pointer[texts]
}

// texts are the settings of one Apply in parsed form. Each rendering loads the pointer once, so that it uses the same
// settings throughout.
type texts struct {
	Settings
	subjects map[Kind]*locale.Text // rendered as plain text, since HTML escaping would turn + and ' into entities
	bodies   map[Kind]*remote
}

// NewRenderer returns a Renderer that uses the built-in texts until Apply is called.
func NewRenderer(o RendererOptions) *Renderer {
	r := &Renderer{now: o.Now, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), fetch: newFetcher(o.Watch)}
	if r.now == nil {
		r.now = time.Now
	}
	r.texts.Store(&texts{Settings: Settings{Show: ShowLink}})
	return r
}

// Apply makes the Renderer use the given settings. Templates whose URL and limits have not changed are not loaded
// again. Texts that Check refuses are logged, and the default texts are used instead.
func (r *Renderer) Apply(s Settings) {
	before := r.texts.Load()
	loaded := map[string]*remote{}
	for _, b := range before.bodies {
		loaded[b.url] = b
	}
	limits := fetchLimits{size: s.MaxSize, age: s.MaxAge, retry: s.Retry}.withDefaults()
	s.Show = cmp.Or(s.Show, ShowLink)
	next := &texts{Settings: s, subjects: map[Kind]*locale.Text{}, bodies: map[Kind]*remote{}}
	if s.Folder != nil {
		for _, err := range s.Folder.Errors {
			r.log.Error("a file in AUTH_MAILER_TEMPLATE_DIR can't be used; using the built-in text", "error", err)
		}
	}
	for _, kind := range Kinds {
		if text := s.Subjects[kind]; text != "" {
			parsed, err := locale.ParseText(text)
			if err != nil {
				r.log.Error("a mail's subject is no template; using the default", "setting",
					"AUTH_MAILER_SUBJECTS_"+kind.Setting(), "error", err)
			} else {
				next.subjects[kind] = parsed
			}
		}
		if location := s.Templates[kind]; location != "" {
			address := s.absolute(location)
			b := loaded[address]
			if b == nil || b.limits != limits {
				b = &remote{url: address, limits: limits}
				loaded[address] = b
			}
			next.bodies[kind] = b
		}
	}
	r.texts.Store(next)
}

// Render makes the mail of a payload. The only error is a payload with an unknown kind: if the operator's texts cannot
// be used, that is logged, and the built-in texts are used instead.
func (r *Renderer) Render(ctx context.Context, p Payload) (Message, error) {
	if p.Kind != Test && !slices.Contains(Kinds, p.Kind) {
		return Message{}, &Refused{Err: fmt.Errorf("mail: no kind %q", p.Kind)}
	}
	d := draft{r: r, t: r.texts.Load(), p: &p, vars: p.Vars.variables()}
	d.lang = d.t.language(&p)
	d.vars.addSite(d.t.Site, d.lang, &p)
	m := Message{
		Kind: p.Kind, To: p.To, Subject: d.subjectText(), Locale: d.lang.Tag,
		Code: p.Vars.Token, Link: p.Vars.ConfirmationURL,
	}
	if own, ok := d.ownBody(ctx); ok {
		m.HTML, m.Text = own, plainText(own)
	} else {
		m.HTML, m.Text = d.builtIn()
	}
	m.Faults = d.faults
	return m, nil
}

// Language returns the language tag that Render would choose for a payload.
func (r *Renderer) Language(p *Payload) string { return r.texts.Load().language(p).Tag }

func (t *texts) language(p *Payload) *locale.Language {
	if p == nil || t.fixed(p.Kind) {
		return t.Languages.Default()
	}
	return t.Languages.Choose(p.Locales...)
}

// draft is a mail while it is rendered.
type draft struct {
	r    *Renderer
	t    *texts
	p    *Payload
	lang *locale.Language
	vars variables
	// faults describe texts of the operator that could not be used.
	faults []string
}

// fault logs that one of the operator's texts cannot be used, and adds this to d.faults. The last of args is the error.
func (d *draft) fault(message string, args ...any) {
	d.faults = append(d.faults, fmt.Sprint(message, ": ", args[len(args)-1]))
	d.r.log.Error(message, append([]any{"kind", d.p.Kind}, args...)...)
}

// text returns the translated string of a key, in the mail's language, with the values inserted.
func (d *draft) text(key string, values variables) string {
	text, err := d.lang.Text(key, values)
	if err != nil {
		d.fault("a string can't be rendered; using the one it replaces", "string", key, "error", templateMistake(err))
	}
	return text
}

func (d *draft) subjectText() string {
	if s := d.t.subjects[d.p.Kind]; s != nil {
		text, err := s.Render(d.vars)
		if line := subjectLine(text); err == nil && line != "" {
			return line
		}
		if err != nil {
			d.fault("a mail's subject can't be rendered; using the default", "error", templateMistake(err))
		}
	}
	return subjectLine(d.text(d.p.stringsKey()+"subject", d.vars))
}

// ownBody returns the HTML made from the operator's template for the mail's kind. The result is false if there is no
// template or it cannot be used.
func (d *draft) ownBody(ctx context.Context) (string, bool) {
	remote := d.t.bodies[d.p.Kind]
	if remote == nil {
		return d.folderBody()
	}
	remote.used.Store(d.r.now().UnixNano())
	b := remote.get(ctx, d.r)
	if b == nil {
		d.faults = append(d.faults, remote.shown()+" can't be loaded") // the cause is in the log already
		return "", false
	}
	return d.rendered(b, "template", remote.shown())
}

// rendered renders a template of the operator. where names the template for the log, as key and value.
func (d *draft) rendered(b *body, where ...any) (string, bool) {
	text, err := b.render(d.vars)
	if err != nil {
		d.fault("a mail's template can't be rendered; using the built-in body",
			append(where, "error", templateMistake(err))...)
	}
	return text, err == nil
}

// folderBody returns the HTML made from the template in the operator's folder for the mail's kind. The result is false
// if the folder has none, or if a setting overrides the kind.
func (d *draft) folderBody() (string, bool) {
	b := d.t.Folder.body(d.p.Kind, d.lang, d.lang == d.t.Languages.Default())
	if b == nil || d.t.fixed(d.p.Kind) {
		return "", false
	}
	return d.rendered(b)
}
