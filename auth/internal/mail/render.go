package mail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/outbound"
)

// Message is a mail ready to be sent.
type Message struct {
	// ID is the outbox row's: it makes the Message-ID, which is the same at every attempt.
	ID uuid.UUID
	// At is when it was ordered: the Date header.
	At                  time.Time
	Kind                Kind
	To                  string
	Subject, HTML, Text string
	// Link and Code are the mail's, for the dev mailbox; "" where the kind has none.
	Link, Code string
}

// Sender takes a finished mail. A nil error means that the receiver is responsible for it now; a
// Refused error that trying again makes no sense.
type Sender interface {
	Send(ctx context.Context, m Message) error
}

// Settings are the operator's texts. Everything may change while the daemon runs. Fields without a tag are made of
// other settings.
type Settings struct {
	// SiteURL is the base of relative template URLs.
	SiteURL string
	// Subjects are templates of subjects; a kind that is missing or "" has its default.
	Subjects map[Kind]string
	// Templates are URLs of bodies; what doesn't begin with http is put behind SiteURL.
	Templates map[Kind]string
	// Most bytes of a template's body.
	MaxSize int64 `env:"AUTH_MAILER_TEMPLATE_MAX_SIZE" envDefault:"1000000" min:"1" table:"Mailer"` // 0: 1,000,000
	// How long a template is fresh.
	MaxAge time.Duration `env:"AUTH_MAILER_TEMPLATE_MAX_AGE" envDefault:"10m" min:"1s" table:"Mailer"` // 0: 10 min
	// Pause after a template could not be loaded.
	Retry time.Duration `env:"AUTH_MAILER_TEMPLATE_RETRY_INTERVAL" envDefault:"10s" min:"1s" table:"Mailer"` // 0: 10 s
	// Templates are reloaded before a mail needs them; false: the first mail after MAX_AGE loads its own.
	Reloading bool `env:"AUTH_MAILER_TEMPLATE_RELOADING_ENABLED" envDefault:"false" table:"Mailer"`
	// Not those that no mail needed for so long.
	MaxIdle time.
		Duration `env:"AUTH_MAILER_TEMPLATE_RELOADING_MAX_IDLE" envDefault:"20m" min:"1s" table:"Mailer"` // 0: 20 min
}

// Check says which subjects are no templates and which template URLs are none, by the settings' names.
// Neither stops the daemon: the default takes their place.
func (s Settings) Check() error {
	var bad []error
	for _, kind := range Kinds {
		if text := s.Subjects[kind]; text != "" {
			if _, err := parseSubject(text); err != nil {
				bad = append(bad, fmt.Errorf("AUTH_MAILER_SUBJECTS_%s: %w", kind.Setting(), err))
			}
		}
		if location := s.Templates[kind]; location != "" {
			if u, err := url.Parse(s.absolute(location)); err != nil || u.Host == "" || u.Scheme != "http" &&
				u.Scheme != "https" {
				bad = append(bad, fmt.Errorf("AUTH_MAILER_TEMPLATES_%s: %q is no URL", kind.Setting(), location))
			}
		}
	}
	return errors.Join(bad...)
}

// absolute is where a template is: text that doesn't begin with http is appended to the site's URL.
func (s Settings) absolute(location string) string {
	if strings.HasPrefix(location, "http") {
		return location
	}
	return strings.TrimRight(s.SiteURL, "/") + "/" + strings.TrimLeft(location, "/")
}

// RendererOptions are what a Renderer works with.
type RendererOptions struct {
	// Now says how old templates are; nil: the time.
	Now func() time.Time
	// Log gets what is wrong with the operator's texts; nil: nowhere.
	Log *slog.Logger
	// Watch is called for each load of a template; nil: off.
	Watch outbound.Watch
}

// Renderer makes mails of payloads. It may be used by many goroutines.
type Renderer struct {
	now   func() time.Time
	log   *slog.Logger
	fetch *fetcher
	texts atomic.Pointer[texts]
}

// texts are one set of settings; a rendering loads the pointer once.
type texts struct {
	subjects map[Kind]*subject
	bodies   map[Kind]*remote
	// reload is how long after its last use a template is still kept fresh; 0: not at all.
	reload time.Duration
}

// NewRenderer renders with the built-in texts until Apply.
func NewRenderer(o RendererOptions) *Renderer {
	r := &Renderer{now: o.Now, log: o.Log, fetch: newFetcher(o.Watch)}
	if r.now == nil {
		r.now = time.Now
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.texts.Store(&texts{})
	return r
}

// Apply puts settings in force. A template whose URL stays keeps what was loaded. What Check complains
// about is logged and replaced by the default.
func (r *Renderer) Apply(s Settings) {
	before := r.texts.Load()
	loaded := map[string]*remote{}
	for _, b := range before.bodies {
		loaded[b.url] = b
	}
	limits := fetchLimits{size: s.MaxSize, age: s.MaxAge, retry: s.Retry}.withDefaults()
	next := &texts{subjects: map[Kind]*subject{}, bodies: map[Kind]*remote{}}
	for _, kind := range Kinds {
		if text := s.Subjects[kind]; text != "" {
			parsed, err := parseSubject(text)
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
	if s.Reloading {
		next.reload = cmp.Or(s.MaxIdle, 20*time.Minute)
	}
	r.texts.Store(next)
}

// Render makes the mail. Only a kind that doesn't exist is an error: whatever is wrong with the
// operator's texts, the built-in ones take their place and the log says so.
func (r *Renderer) Render(ctx context.Context, p Payload) (Message, error) {
	if _, known := builtIns[p.Kind]; !known {
		return Message{}, &Refused{Err: fmt.Errorf("mail: no kind %q", p.Kind)}
	}
	t := r.texts.Load()
	variables := p.Vars.variables()
	m := Message{
		Kind: p.Kind, To: p.To,
		Subject: r.subject(t, p.Kind, variables),
		HTML:    r.body(ctx, t, p.Kind, variables),
		Code:    p.Vars.Token, Link: p.Vars.ConfirmationURL,
	}
	m.Text = plainText(m.HTML)
	return m, nil
}

func (r *Renderer) subject(t *texts, kind Kind, variables map[string]any) string {
	if s := t.subjects[kind]; s != nil {
		text, err := s.render(variables)
		if err == nil && text != "" {
			return text
		}
		if err != nil {
			r.log.Error("a mail's subject can't be rendered; using the default", "kind", kind, "error",
				templateMistake(err))
		}
	}
	_, subjects := builtInTexts()
	text, err := subjects[kind].render(variables)
	if err != nil {
		panic(err) // it prints strings; the tests render them all
	}
	return text
}

func (r *Renderer) body(ctx context.Context, t *texts, kind Kind, variables map[string]any) string {
	if remote := t.bodies[kind]; remote != nil {
		remote.used.Store(r.now().UnixNano())
		if b := remote.get(ctx, r); b != nil {
			text, err := b.render(variables)
			if err == nil {
				return text
			}
			r.log.Error("a mail's template can't be rendered; using the built-in body", "kind", kind, "template",
				remote.shown(), "error", templateMistake(err))
		}
	}
	bodies, _ := builtInTexts()
	text, err := bodies[kind].render(variables)
	if err != nil {
		// Only a value of 2 MiB does this, and addresses have 255 bytes.
		r.log.Error("a built-in body can't be rendered", "kind", kind, "error", templateMistake(err))
	}
	return text
}
