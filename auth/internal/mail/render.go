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

// Message is a mail ready to be sent.
type Message struct {
	// ID is the id of the outbox row. The Message-ID is made of it, so it is the same at every attempt.
	ID uuid.UUID
	// At is when the mail was ordered, for the Date header.
	At                  time.Time
	Kind                Kind
	To                  string
	Subject, HTML, Text string
	// Locale is the language tag of Subject, HTML and Text.
	Locale string
	// Faults describe the operator's texts that could not be used.
	Faults []string
	// Link and Code are the link and digits in the mail, for the dev mailbox; "" if the kind has none.
	Link, Code string
}

// Sender sends a finished mail. A nil error means that the receiver has accepted the mail, a Refused error that a retry
// is pointless.
type Sender interface {
	Send(ctx context.Context, m Message) error
}

// Settings are the settings of the operator's texts. All of them may change while the daemon runs. Fields without a tag
// are computed from other settings.
type Settings struct {
	// SiteURL is the base of relative template URLs.
	SiteURL string
	Site    Site
	// What built-in mails show: link, both (link and code), or code (alone, for applications with a field for it).
	Show string `env:"AUTH_MAILER_SHOW" envDefault:"link" oneof:"link both code" table:"Mailer"`
	// Languages of built-in mails; nil: English.
	Languages *locale.Catalog
	// Folder of templates and translations: layout.html, strings.de.json, magic_link.html, magic_link.de.html.
	Dir string `env:"AUTH_MAILER_TEMPLATE_DIR" table:"Mailer"`
	// Folder is the content of Dir; nil: none.
	Folder *Folder
	// Subjects are templates of subjects; a kind without one has the default subject.
	Subjects map[Kind]string
	// Templates are URLs of bodies; a text that does not begin with http is appended to SiteURL.
	Templates map[Kind]string
	// Most bytes of a template's body.
	MaxSize int64 `env:"AUTH_MAILER_TEMPLATE_MAX_SIZE" envDefault:"1000000" min:"1" table:"Mailer"` // 0: 1,000,000
	// How long a template is fresh.
	MaxAge time.Duration `env:"AUTH_MAILER_TEMPLATE_MAX_AGE" envDefault:"10m" min:"1s" table:"Mailer"` // 0: 10 min
	// Pause after a template could not be loaded.
	Retry time.Duration `env:"AUTH_MAILER_TEMPLATE_RETRY_INTERVAL" envDefault:"10s" min:"1s" table:"Mailer"` // 0: 10 s
	// Templates are reloaded before a mail needs them; false: the first mail after MAX_AGE loads its own.
	Reloading bool `env:"AUTH_MAILER_TEMPLATE_RELOADING_ENABLED" envDefault:"false" table:"Mailer"`
	// Templates that no mail has needed for this time are not reloaded.
	MaxIdle time.
		Duration `env:"AUTH_MAILER_TEMPLATE_RELOADING_MAX_IDLE" envDefault:"20m" min:"1s" table:"Mailer"` // 0: 20 min
}

// Check returns an error that names the settings whose subjects are not templates or whose template URLs are malformed.
// The daemon runs nevertheless: defaults replace them.
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

// Lint returns warnings about template URLs that look like files of this machine but are appended to the site's URL.
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

// fixed reports whether a setting overrides a kind, which is then not translated.
func (s Settings) fixed(kind Kind) bool { return s.Subjects[kind] != "" || s.Templates[kind] != "" }

// absolute returns the URL of a template: a text that does not begin with http is appended to the site's URL.
func (s Settings) absolute(location string) string {
	if _, local := filePath(location); local || strings.HasPrefix(location, "http") {
		return location
	}
	return strings.TrimRight(s.SiteURL, "/") + "/" + strings.TrimLeft(location, "/")
}

// RendererOptions are the dependencies of a Renderer.
type RendererOptions struct {
	// Now is the clock for the age of templates; nil: time.Now.
	Now func() time.Time
	// Log gets errors in the operator's texts; nil: discarded.
	Log *slog.Logger
	// Watch is called for each load of a template; nil: off.
	Watch outbound.Watch
}

// Renderer makes mails from payloads. It may be used by many goroutines.
type Renderer struct {
	now   func() time.Time
	log   *slog.Logger
	fetch *fetcher
	texts atomic.Pointer[texts]
}

// texts is one version of the settings; each rendering loads the pointer once.
type texts struct {
	Settings
	subjects map[Kind]*locale.Text // plain text: HTML escaping would turn + and ' into entities
	bodies   map[Kind]*remote
}

// NewRenderer returns a Renderer with the built-in texts, until Apply.
func NewRenderer(o RendererOptions) *Renderer {
	r := &Renderer{now: o.Now, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), fetch: newFetcher(o.Watch)}
	if r.now == nil {
		r.now = time.Now
	}
	r.texts.Store(&texts{Settings: Settings{Show: ShowLink}})
	return r
}

// Apply puts settings in force. Templates whose URL has not changed are not loaded again. Texts that Check refuses are
// logged and replaced by defaults.
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

// Render makes the mail. Only an unknown kind is an error: if the operator's texts cannot be used, that is logged and
// built-in texts replace them.
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

// Language returns the tag of the language in which a mail would be rendered.
func (r *Renderer) Language(p *Payload) string { return r.texts.Load().language(p).Tag }

func (t *texts) language(p *Payload) *locale.Language {
	if p == nil || t.fixed(p.Kind) {
		return t.Languages.Default()
	}
	return t.Languages.Choose(p.Locales...)
}

// draft is a mail that is being rendered.
type draft struct {
	r    *Renderer
	t    *texts
	p    *Payload
	lang *locale.Language
	vars variables
	// faults describe the operator's texts that could not be used.
	faults []string
}

// fault logs that one of the operator's texts cannot be used.
func (d *draft) fault(message string, args ...any) {
	d.faults = append(d.faults, fmt.Sprint(message, ": ", args[len(args)-1]))
	d.r.log.Error(message, append([]any{"kind", d.p.Kind}, args...)...)
}

// text returns a string in the mail's language.
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

// ownBody returns the operator's body of the mail's kind, if there is a usable one.
func (d *draft) ownBody(ctx context.Context) (string, bool) {
	remote := d.t.bodies[d.p.Kind]
	if remote == nil {
		return d.folderBody()
	}
	remote.used.Store(d.r.now().UnixNano())
	b := remote.get(ctx, d.r)
	if b == nil {
		d.faults = append(d.faults, remote.shown()+" can't be loaded") // the load has logged the cause
		return "", false
	}
	return d.rendered(b, "template", remote.shown())
}

// rendered renders a body of the operator's; where it came from is for the log.
func (d *draft) rendered(b *body, where ...any) (string, bool) {
	text, err := b.render(d.vars)
	if err != nil {
		d.fault("a mail's template can't be rendered; using the built-in body",
			append(where, "error", templateMistake(err))...)
	}
	return text, err == nil
}

// folderBody returns the folder's body of the mail's kind, unless a setting overrides the kind.
func (d *draft) folderBody() (string, bool) {
	b := d.t.Folder.body(d.p.Kind, d.lang, d.lang == d.t.Languages.Default())
	if b == nil || d.t.fixed(d.p.Kind) {
		return "", false
	}
	return d.rendered(b)
}
