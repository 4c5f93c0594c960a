package hook

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/shared/must"
)

// The example of the Standard Webhooks specification and its reference libraries.
func TestSignVector(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	must.Succeed(t, err)
	got := sign([][]byte{key}, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	two := sign([][]byte{key, []byte("another")}, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0),
		[]byte(`{"test": 2432232314}`))
	if parts := strings.Split(two, " "); len(parts) != 2 || parts[0] != got || !strings.HasPrefix(parts[1], "v1,") {
		t.Errorf("two secrets: %q: a single space parts two signatures", two)
	}
}

const (
	secret1 = "v1,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secret2 = "v1,whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ uri, want string }{
		{"https://hooks.example.org/auth?x=1", ""},
		{"http://localhost:8000/a", ""}, {"http://127.0.0.1/", ""}, {"http://[::1]:1/", ""},
		{"http://host.docker.internal/x", ""},
		{"pg-functions://postgres/public/my_hook", ""}, {"pg-functions://x/_a/B1", ""},
		{"http://hooks.example.org/", "http:// is for localhost"},
		{"http://127.0.0.2/", "http:// is for localhost"},
		{"ftp://x/y", "must begin with"}, {"", "must begin with"}, {"https:///x", "names no host"},
		{"https://a b/", "is no URL"},
		{"pg-functions://postgres/public", "must be pg-functions"},
		{"pg-functions:///public/f", "must be pg-functions"},
		{"pg-functions://postgres/public/f/g", "must be pg-functions"},
		{"pg-functions://postgres/1a/f", "the schema's name"},
		{"pg-functions://postgres/public/f;drop", "the function's name"},
		{"pg-functions://p/a/" + strings.Repeat("f", 64), "the function's name"},
	} {
		_, err := ParseURI(c.uri)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.uri, err, c.want)
		}
	}
	for text, want := range map[string]error{
		secret1: nil, secret1 + "|" + secret2: nil,
		"": errSecret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw": errSecret, "v1,whsec_short": errSecret,
		secret1 + "|":                         errSecret,
		"v1,whsec_" + strings.Repeat("!", 40): errSecret, "v1,whsec_" + strings.Repeat("A", 92): errSecret,
		"v1a,whsk_x;whpk_y": errAsymmetric,
	} {
		if _, err := (Target{}).WithSecrets(text); err != want {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("pg-functions://postgres/public/f", secret1)
	f.Add("http://localhost/", secret1+"|"+secret2)
	f.Fuzz(func(t *testing.T, uri, secrets string) {
		target, err := ParseURI(uri)
		if err == nil && (target.url == "") != target.Function() {
			t.Errorf("%q: %+v", uri, target)
		}
		if signed, err := target.WithSecrets(secrets); err == nil && len(signed.secrets) == 0 {
			t.Errorf("%q: no secret", secrets)
		}
	})
}

// FuzzRefusal: whatever a receiver answers, a refusal has a status of an error.
func FuzzRefusal(f *testing.F) {
	f.Add([]byte(`{"error":{"http_code":403,"message":"no"}}`))
	f.Add([]byte(`{"error":{"http_code":1e9,"message":"no"}}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if e, ok := errors.AsType[*Error](refusal(answer)); ok && (e.Status < 400 || e.Status > 599 || e.Msg == "") {
			t.Errorf("%q: %+v", answer, e)
		}
	})
}

// receiver verifies every request as a receiver would, and answers as configured.
type receiver struct {
	*httptest.Server
	mu        sync.Mutex
	questions []map[string]any
	ids       []string
}

func receive(t *testing.T, answer func(n int, w http.ResponseWriter)) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		id := q.Header.Get("webhook-id")
		at, err := time.Parse("2006-01-02", "2031-03-04")
		if err != nil || q.Header.Get("webhook-timestamp") != "1930348800" {
			t.Errorf("timestamp %q", q.Header.Get("webhook-timestamp"))
		}
		target, _ := Target{}.WithSecrets(secret1 + "|" + secret2)
		if got, want := q.Header.Get("webhook-signature"), sign(target.secrets, id, at, body); got != want {
			t.Errorf("signature %q, want %q", got, want)
		}
		if q.Method != "POST" || q.Header.Get("Content-Type") != "application/json" || len(id) != 36 {
			t.Errorf("%s %v", q.Method, q.Header)
		}
		var m map[string]any
		if err := json.Unmarshal(body, &m); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.questions, r.ids = append(r.questions, m), append(r.ids, id)
		n := len(r.ids)
		r.mu.Unlock()
		answer(n, w)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) set(t *testing.T, p Point, o Options) *Set {
	return setOf(t, p, r.URL+"/hook", o)
}

func setOf(t *testing.T, p Point, uri string, o Options) *Set {
	target, err := ParseURI(uri)
	if err == nil {
		target, err = target.WithSecrets(secret1 + "|" + secret2)
	}
	must.Succeed(t, err)
	if o.Now == nil {
		o.Now = func() time.Time { return time.Date(2031, 3, 4, 0, 0, 0, 0, time.UTC) }
	}
	if o.Pause == 0 {
		o.Pause = time.Millisecond
	}
	if o.Budget == 0 {
		o.Budget = time.Minute
	}
	s := NewSet(o, map[Point]Target{p: target})
	t.Cleanup(s.Close)
	return s
}

func answer(status int, kind, body string) func(int, http.ResponseWriter) {
	return func(_ int, w http.ResponseWriter) {
		if kind != "" {
			w.Header().Set("Content-Type", kind)
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func TestAnswers(t *testing.T) {
	const typ = "application/json; charset=utf-8"
	for _, c := range []struct {
		name         string
		status       int
		kind, body   string
		want         int // 0: taken
		code, msg    string
		refused, got bool
	}{
		{name: "output", status: 200, kind: typ, body: `{"yes":true}`, got: true},
		{name: "accepted", status: 202, kind: typ, body: `{"yes":true}`, got: true},
		{name: "empty", status: 200, kind: typ},
		{name: "no content", status: 204},
		{name: "error null", status: 200, kind: typ, body: `{"error":null,"yes":true}`, got: true},
		{name: "error without words", status: 200, kind: typ,
			body: `{"error":{"http_code":403,"message":""},"yes":true}`,
			got:  true},
		{name: "refusal", status: 200, kind: typ, body: `{"error":{"http_code":403,"message":"not you"}}`, want: 403,
			code: CodeRefused, msg: "not you", refused: true},
		{name: "refusal without code", status: 200, kind: typ, body: `{"error":{"message":"not you"}}`, want: 500,
			code: CodeFailed, msg: "not you", refused: true},
		{name: "refusal with a good code", status: 200, kind: typ,
			body: `{"error":{"http_code":200,"message":"not you"}}`,
			want: 500, code: CodeFailed, msg: "not you", refused: true},
		{name: "content type", status: 200, kind: "text/plain", body: `{}`, want: 400, code: CodeContentType,
			msg: "Invalid JSON response. Expected content-type application/json"},
		{name: "largest", status: 200, kind: typ, body: `{"yes":true}` + strings.Repeat(" ", maxAnswer-12), got: true},
		{name: "larger", status: 200, kind: typ, body: `{"yes":true}` + strings.Repeat(" ", maxAnswer-11), want: 422,
			code: CodeOverSize, msg: "Payload size exceeds size limit of 204800 bytes"},
		{name: "no JSON", status: 200, kind: typ, body: `{`, want: 500, code: CodeFailed,
			msg: "Error unmarshaling hook output"},
		{name: "400", status: 400, kind: typ, body: `{"error":{"message":"x"}}`, want: 500, code: CodeFailed,
			msg: "Invalid payload sent to hook"},
		{name: "401", status: 401, want: 500, code: CodeFailed, msg: "Hook requires authorization token"},
		{name: "404", status: 404, want: 500, code: CodeFailed, msg: "Unexpected status code returned from hook: 404"},
		{name: "redirect", status: 302, want: 500, code: CodeFailed,
			msg: "Unexpected status code returned from hook: 302"},
		{name: "429 without retry-after", status: 429, want: 500, code: CodeFailed,
			msg: "Service currently unavailable due to hook"},
		{name: "503 without retry-after", status: 503, want: 500, code: CodeFailed,
			msg: "Service currently unavailable due to hook"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := receive(t, answer(c.status, c.kind, c.body))
			var out struct{ Yes bool }
			err := r.set(t, SendSMS, Options{}).Call(context.Background(), SendSMS, "192.0.2.7",
				map[string]any{"user": 1}, &out)
			e, _ := errors.AsType[*Error](err)
			switch {
			case c.want == 0 && (err != nil || out.Yes != c.got):
				t.Errorf("%v, %+v", err, out)
			case c.want != 0 && (e == nil || e.Status != c.want || e.Code != c.code || e.Msg != c.msg ||
				e.Refused != c.refused):
				t.Errorf("%+v", err)
			}
			q := r.questions[0]
			m, _ := q["metadata"].(map[string]any)
			if len(r.questions) != 1 || q["user"] != 1.0 || m["name"] != "send-sms" || m["ip_address"] != "192.0.2.7" ||
				m["time"] != "2031-03-04T00:00:00Z" || len(m["uuid"].(string)) != 36 {
				t.Errorf("questions %v", r.questions)
			}
		})
	}
}

// 429 and 503 with retry-after are retried at once, three times in all, each with an id of its own.
func TestRetryAfter(t *testing.T) {
	r := receive(t, func(n int, w http.ResponseWriter) {
		if n < 3 {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader([]int{429, 503}[n%2])
			return
		}
		answer(200, "application/json", `{}`)(n, w)
	})
	if err := r.set(t, SendSMS, Options{Pause: time.Hour}).Call(
		context.Background(), SendSMS, "", nil, nil); err != nil {
		t.Error(err)
	}
	if len(r.ids) != 3 || r.ids[0] == r.ids[1] || r.ids[1] == r.ids[2] {
		t.Errorf("ids %v", r.ids)
	}
	r = receive(t, func(_ int, w http.ResponseWriter) { w.Header().Set("Retry-After", "1"); w.WriteHeader(503) })
	err := r.set(t, SendSMS, Options{}).Call(context.Background(), SendSMS, "", nil, nil)
	if e, _ := errors.AsType[*Error](err); e == nil || e.Status != 422 ||
		e.Code != CodeTimeoutAfterRetry || len(r.ids) != 3 {
		t.Errorf("%v after %d", err, len(r.ids))
	}
	// The outbox stores it with the message.
	if want := "hook send-sms: hook_timeout_after_retry: Failed to reach hook after maximum retries: asked to come " +
		"again (status 503)"; err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// An unreachable receiver is tried three times; a slow one ends the budget.
func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	tries := make(chan struct{}, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			tries <- struct{}{}
			c.Close()
		}
	}()
	defer l.Close()
	err = setOf(t, SendSMS, "http://"+l.Addr().String(), Options{}).Call(context.Background(), SendSMS, "", nil, nil)
	if e, _ := errors.AsType[*Error](err); e == nil || e.Code != CodeTimeoutAfterRetry || len(tries) != 3 {
		t.Errorf("%v after %d", err, len(tries))
	}
	held := make(chan struct{})
	r := receive(t, func(int, http.ResponseWriter) { <-held })
	err = r.set(t, SendSMS, Options{Budget: 50 * time.Millisecond}).Call(context.Background(), SendSMS, "", nil, nil)
	close(held)
	if e, _ := errors.AsType[*Error](err); e == nil || e.Status != 422 ||
		e.Code != CodeTimeout || e.Msg != "Failed to reach hook within maximum time of 0.050000 seconds" {
		t.Error(err)
	}
}

// What is logged and kept of a failure holds neither the query nor the user of the URL: keys stand there.
func TestUnreachable_hidesURL(t *testing.T) {
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer slow.Close()
	for _, base := range []string{"http://user:hunter2@127.0.0.1:1",
		strings.Replace(slow.URL, "http://", "http://user:hunter2@", 1)} {
		s := setOf(t, SendEmail, base+"/hook?key=hunter2",
			Options{Pause: time.Millisecond, Budget: 100 * time.Millisecond})
		err := s.Call(t.Context(), SendEmail, "", nil, nil)
		if text := fmt.Sprint(err); err == nil || strings.Contains(text, "hunter2") ||
			!strings.Contains(text, "calling 127.0.0.1:") {
			t.Error(err)
		}
	}
}

func TestFunctionAnswers(t *testing.T) {
	for _, c := range []struct {
		out  string
		err  error
		code string
	}{
		{out: `{"yes":true}`}, {}, {err: ErrFunctionTime, code: CodeTimeout},
		{err: errors.New("no such function"), code: CodeFailed},
		{out: `"` + strings.Repeat("x", maxAnswer) + `"`, code: CodeOverSize},
		{out: `{"error":{"http_code":409,"message":"no"}}`, code: CodeRefused},
	} {
		asked := ""
		s := setOf(t, BeforeUserCreated, "pg-functions://postgres/public/f",
			Options{Functions: func(_ context.Context, schema, f string, in []byte) ([]byte, error) {
				asked = schema + "." + f
				if !json.Valid(in) {
					t.Errorf("%s", in)
				}
				return []byte(c.out), c.err
			}})
		err := s.Call(context.Background(), BeforeUserCreated, "", nil, nil)
		if e, _ := errors.AsType[*Error](err); (e == nil) != (c.code == "") || e != nil &&
			e.Code != c.code || asked != "public.f" {
			t.Errorf("%.40s, %v: %v", c.out, c.err, err)
		}
	}
	if s := NewSet(Options{}, nil); s.On(SendSMS) {
		t.Error("on without being configured")
	}
}
