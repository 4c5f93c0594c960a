package outbound

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// Call describes one request for Watch. Each attempt and each redirect is a call of its own.
type Call struct {
	// Target names the receiver: "hook send-email", "sms twilio", "provider github". There are only as many different
	// names as receivers in the settings.
	Target string
	// Method is the HTTP method; "" for a call that is not HTTP.
	Method string
	// Host is the receiving host, with a port unless it is the default; "" if the call has no host.
	Host string
}

// Watch is called at the beginning of each call. The function that it returns is called once, when the answer's body
// was closed or the call failed. status is the HTTP status; it is 0 without an answer and for a call that is not HTTP.
// A nil Watch costs nothing.
type Watch func(ctx context.Context, c Call) (context.Context, func(status int, err error))

type targetKey struct{}

// WithTarget returns a context for calls to the named receiver. The name replaces Options.Target.
func (c Clients) WithTarget(ctx context.Context, to string) context.Context {
	if !c.watched {
		return ctx
	}
	return context.WithValue(ctx, targetKey{}, to)
}

// watch sends a request and reports to Options.Watch its beginning and its end, which is when the body is closed.
func (g *gate) watch(r *http.Request, isDiscovered bool) (*http.Response, error) {
	c := Call{Target: g.options.Target, Method: r.Method, Host: r.URL.Host}
	if to, ok := r.Context().Value(targetKey{}).(string); ok {
		c.Target = to
	}
	ctx, done := g.options.Watch(r.Context(), c)
	r = r.WithContext(ctx)
	if g.options.Inject != nil {
		r.Header = r.Header.Clone() // r and the caller's request share the header
		g.options.Inject(ctx, r.Header)
	}
	resp, err := g.send(r, isDiscovered)
	if err != nil {
		done(0, err)
		return nil, err
	}
	body := &watchedBody{ReadCloser: resp.Body}
	body.end = sync.OnceFunc(func() { done(resp.StatusCode, body.failed) })
	resp.Body = body
	return resp, nil
}

// watchedBody is a response body that calls end when it is closed.
type watchedBody struct {
	io.ReadCloser
	failed error
	end    func()
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.failed = err
	}
	return n, err
}

func (b *watchedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
