// Package captcha verifies with hCaptcha or Turnstile whether a visitor has solved a captcha. Both providers have the
// same protocol.
//
// It does not handle the clients' requests: package httpapi decides which requests need a captcha, and what is answered
// if the captcha is not solved or cannot be verified.
package captcha

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/outbound"
)

// maxAnswer is the longest answer, in bytes, that is accepted from a provider. The providers' answers have a few
// hundred bytes.
const maxAnswer = 64 << 10

// maxToken is the longest token, in bytes, that is sent to a provider. The providers' tokens have up to a few thousand
// bytes.
const maxToken = 32 << 10

// siteVerify is the URL at which each provider verifies tokens.
var siteVerify = map[string]string{
	"hcaptcha":  "https://hcaptcha.com/siteverify",
	"turnstile": "https://challenges.cloudflare.com/turnstile/v0/siteverify",
}

// Settings are the settings of the provider and of the operator's account there.
type Settings struct {
	// hcaptcha or turnstile.
	Provider string `env:"AUTH_SECURITY_CAPTCHA_PROVIDER" envDefault:"hcaptcha"`
	// Required with AUTH_SECURITY_CAPTCHA_ENABLED=true. The secret key that the provider gave you.
	Secret string `env:"AUTH_SECURITY_CAPTCHA_SECRET" secret:"true"`
	// Time limit for a call of the provider, after which the client's request fails.
	Timeout time.Duration `env:"AUTH_SECURITY_CAPTCHA_TIMEOUT" envDefault:"10s" min:"1ms"` // 0: 10 s
	// URL to call, in the place of the provider's own.
	URL string `env:"AUTH_SECURITY_CAPTCHA_URL"`
}

// Options are the AUTH_SECURITY_CAPTCHA_* settings.
type Options struct {
	Settings
	Watch outbound.Watch // reports each call; nil: off
}

// Verifier verifies tokens. It is immutable and stores nothing.
type Verifier struct {
	o         Options
	name, url string
	http      outbound.Clients
}

// New returns a verifier. Its error names the settings that are wrong.
func New(o Options) (*Verifier, error) {
	var bad []error
	at, known := siteVerify[o.Provider]
	if !known {
		bad = append(bad, errors.New("AUTH_SECURITY_CAPTCHA_PROVIDER must be hcaptcha or turnstile"))
	}
	if o.Secret = strings.TrimSpace(o.Secret); o.Secret == "" {
		bad = append(bad, errors.New(
			"AUTH_SECURITY_CAPTCHA_SECRET is required with AUTH_SECURITY_CAPTCHA_ENABLED=true"))
	}
	if err := errors.Join(bad...); err != nil {
		return nil, err
	}
	v := &Verifier{o: o, name: o.Provider, url: cmp.Or(o.URL, at), http: outbound.New(outbound.Options{
		Timeout: o.Timeout, MaxBytes: maxAnswer, Watch: o.Watch, Target: "captcha " + o.Provider,
	})}
	v.http.Configured.CheckRedirect = outbound.NoRedirect
	return v, nil
}

// Watched returns a copy of v that reports its calls to w.
func (v *Verifier) Watched(w outbound.Watch) *Verifier {
	o := v.o
	o.Watch = w
	n, _ := New(o) // valid: v has the same options
	return n
}

// String returns the provider's name and the URL that is called.
func (v *Verifier) String() string { return v.name + " at " + v.url }

// Overridden reports whether the operator has set another URL than the provider's own.
func (v *Verifier) Overridden() bool { return v.url != siteVerify[v.name] }

// Close closes idle connections. Verify still works after Close.
func (v *Verifier) Close() { v.http.CloseIdle() }

// Refused is the error for a captcha that the provider does not accept. Codes are the provider's reasons, such as
// invalid-or-already-seen-response.
type Refused struct{ Codes []string }

func (e *Refused) Error() string { return "captcha refused: " + e.Reasons() }

// Reasons returns the codes, joined by comma and space.
func (e *Refused) Reasons() string { return strings.Join(e.Codes, ", ") }

// Misconfigured reports whether the provider refused because of the operator's secret, and not because of the visitor.
func (e *Refused) Misconfigured() bool {
	return slices.ContainsFunc(e.Codes, func(c string) bool {
		return c == "invalid-input-secret" || c == "missing-input-secret" || c == "sitekey-secret-mismatch"
	})
}

// Verify verifies a visitor's token with the provider. ip is the visitor's address, or "" if it is unknown. The error
// is a *Refused if the provider refuses the token; any other error means that the provider could not be reached or gave
// no valid answer.
func (v *Verifier) Verify(ctx context.Context, token, ip string) error {
	if len(token) > maxToken {
		return &Refused{Codes: []string{"invalid-input-response"}}
	}
	form := url.Values{"secret": {v.o.Secret}, "response": {token}}
	if ip != "" {
		form.Set("remoteip", ip)
	}
	_, body, err := v.http.SendForm(ctx, http.MethodPost, v.url, form, nil)
	if err != nil {
		return fmt.Errorf("captcha: %s: %w", v.name, err)
	}
	// The body says whether the token is accepted; the HTTP status is ignored.
	var in struct {
		Success *bool    `json:"success"`
		Codes   []string `json:"error-codes"`
	}
	if json.Unmarshal(body, &in) != nil || in.Success == nil { // the error is dropped: it may quote the answer
		return fmt.Errorf("captcha: %s: the answer is not the JSON that was expected", v.name)
	}
	if *in.Success {
		return nil
	}
	return &Refused{Codes: words(in.Codes)}
}

// Check tests, for the command "auth check", whether the provider can be reached and accepts the secret. It sends a
// token that the provider is bound to refuse.
func (v *Verifier) Check(ctx context.Context) error {
	err := v.Verify(ctx, "auth-check", "")
	if r, ok := errors.AsType[*Refused](err); ok {
		if r.Misconfigured() {
			return fmt.Errorf("%s does not know AUTH_SECURITY_CAPTCHA_SECRET: %s", v.name, r.Reasons())
		}
		return nil
	}
	return err
}

// words makes the provider's codes safe for answers and logs: at most 8 codes of at most 64 printable ASCII characters.
func words(codes []string) []string {
	codes = codes[:min(len(codes), 8)]
	for i, c := range codes {
		c = strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '?'
			}
			return r
		}, c)
		codes[i] = c[:min(len(c), 64)]
	}
	return codes
}
