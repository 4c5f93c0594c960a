package mailbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"gatehouse/auth/internal/mail"
	"gatehouse/shared/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func newBox() *Box { return New(func() time.Time { return noon }) }

func put(t *testing.T, b *Box, to string, kind mail.Kind) uuid.UUID {
	t.Helper()
	id := uuid.New()
	err := b.Send(t.Context(), mail.Message{
		ID: id, At: noon, Kind: kind, To: to, Subject: "Hi <b>", HTML: "<p>Hi</p><script>x</script>", Text: "Hi\n",
		Link: "https://auth.test/verify?token=a&type=b", Code: "123456", Locale: "de",
	})
	must.Succeed(t, err)
	return id
}

// get reads the box under a Host.
func get(t *testing.T, b *Box, method, target, host string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	r.Host = host
	w := httptest.NewRecorder()
	b.Handler().ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	b := newBox()
	first := put(t, b, "ada@acme.test", mail.Confirmation)
	put(t, b, "bob@acme.test", mail.MagicLink)
	must.Succeed(t, b.SendText(t.Context(), uuid.New(),
		mail.SMS{To: "15550001", Text: "Your code is 654321", Token: "654321", Kind: "sms",
			Channel: "sms"}))
	f := func(target string, status int, contentType string, holds ...string) {
		t.Helper()
		w := get(t, b, "GET", target, "localhost:8083")
		if w.Code != status || !strings.HasPrefix(w.Header().Get("Content-Type"), contentType) {
			t.Errorf("%s: %d %s", target, w.Code, w.Header().Get("Content-Type"))
		}
		if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %v", target, w.Header())
		}
		for _, text := range holds {
			if !strings.Contains(w.Body.String(), text) {
				t.Errorf("%s lacks %s:\n%s", target, text, w.Body)
			}
		}
	}
	f("/", 200, "text/html", `<a href="/m/`+first.String()+`">Hi &lt;b&gt;</a>`, "Your code is 654321")
	f("/m/"+first.String(), 200, "text/html", `href="https://auth.test/verify?token=a&amp;type=b"`, "123456",
		"Hi &lt;b&gt;", "/messages/"+first.String()+"/html", "sandbox=", "not in this mail: AUTH_MAILER_SHOW",
		"&lt;script&gt;x&lt;/script&gt;", "Copy code")
	f("/m/"+uuid.NewString(), 404, "text/plain")
	f("/app.js", 200, "text/javascript", "clipboard")
	f("/messages", 200, "application/json", `"link": "https://auth.test/verify?token=a&type=b"`,
		`"at": "2026-03-04T12:00:00Z"`, `"code_in_text": false`, `"code_in_text": true`, `"locale": "de"`)
	f("/messages/"+first.String(), 200, "application/json", `"to": "ada@acme.test"`)
	f("/messages/"+first.String()+"/html", 200, "text/html", "<p>Hi</p>")
	f("/messages/"+uuid.NewString(), 404, "text/plain")
	f("/messages/x/html", 404, "text/plain")
	f("/latest/code", 200, "text/plain", "654321")
	f("/latest/link?to=ADA@acme.test", 200, "text/plain", "https://auth.test/verify?token=a&type=b\n")
	f("/latest/code?to=%2B15550001", 200, "text/plain", "654321")
	f("/latest/code?to=+15550001", 200, "text/plain", "654321")
	f("/latest/code?to=15550001", 200, "text/plain", "654321")
	f("/latest/kind?channel=email", 200, "text/plain", "magic_link")
	f("/latest/kind?kind=confirmation", 200, "text/plain", "confirmation")
	f("/latest/nothing", 404, "text/plain")
	f("/latest/code?to=nobody", 404, "text/plain")
	f("/latest/code?to=nobody&wait=0.01", 404, "text/plain")
	f("/messages?wait=NaN", 200, "application/json")
	f("/else", 404, "text/plain")

	var list []Message
	if err := json.Unmarshal(get(t, b, "GET", "/messages", "127.0.0.1").Body.Bytes(), &list); err != nil ||
		len(list) != 3 || list[2].ID != first || list[0].Channel != "sms" {
		t.Errorf("%v: %+v", err, list)
	}
	if csp := get(t, b, "GET", "/messages/"+first.String()+"/html",
		"[::1]:8083").Header().Get("Content-Security-Policy"); !strings.Contains(csp, "sandbox") ||
		!strings.Contains(csp, "default-src 'none'") {
		t.Errorf("a mail's body may run: %s", csp)
	}
	if w := get(t, b, "DELETE", "/messages", "localhost"); w.Code != 204 || len(b.Messages(Filter{})) != 0 {
		t.Errorf("DELETE: %d", w.Code)
	}
	if w := get(t, b, "GET", "/messages", "localhost"); strings.TrimSpace(w.Body.String()) != "[]" {
		t.Errorf("an empty box: %s", w.Body)
	}
	if w := get(t, b, "POST", "/messages", "localhost"); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestHandler_host(t *testing.T) {
	b := newBox()
	put(t, b, "ada@acme.test", mail.Confirmation)
	f := func(host string, allowed bool) {
		t.Helper()
		for _, target := range []string{"/", "/messages", "/latest/code"} {
			w := get(t, b, "GET", target, host)
			if (w.Code == 200) != allowed || !allowed &&
				(w.Code != 403 || strings.Contains(w.Body.String(), "123456")) {
				t.Errorf("Host %q: %s answers %d", host, target, w.Code)
			}
		}
		if w := get(t, b, "DELETE", "/messages", host); w.Code == 403 == allowed {
			t.Errorf("Host %q: DELETE answers %d", host, w.Code)
		}
		put(t, b, "ada@acme.test", mail.Confirmation)
	}
	for _, host := range []string{"localhost", "LOCALHOST:8083", "app.localhost:8083", "127.0.0.1:8083", "127.1.2.3",
		"[::1]:8083", "[::1]", "[::ffff:127.0.0.1]:1"} {
		f(host, true)
	}
	for _, host := range []string{"", "evil.test", "evil.test:8083", "localhost.evil.test", "127.0.0.1.evil.test",
		"notlocalhost", "10.0.0.1:8083", "0.0.0.0:8083", "127.0.0.1:evil", "localhost:80:80", "[::2]:1", "2130706433",
		"localhost@evil.test"} {
		f(host, false)
	}
}

func TestBox_bounds(t *testing.T) {
	b := newBox()
	for range mostMessages + 10 {
		put(t, b, "ada@acme.test", mail.Confirmation)
	}
	if n := len(b.Messages(Filter{})); n != mostMessages {
		t.Errorf("%d messages are kept", n)
	}
	for i := range 40 {
		b.Send(t.Context(), mail.Message{ID: uuid.New(), HTML: strings.Repeat("x", 1<<20), Subject: fmt.Sprint(i)})
	}
	list, sum := b.Messages(Filter{}), 0
	for i := range list {
		sum += list[i].size()
	}
	if sum > mostBytes || sum != b.bytes || list[0].Subject != "39" {
		t.Errorf("%d bytes are kept, %d counted", sum, b.bytes)
	}
	b.Clear()
	m := mail.Message{ID: uuid.New(), Subject: "once"}
	b.Send(t.Context(), m)
	b.Send(t.Context(), m)
	if n := len(b.Messages(Filter{})); n != 1 {
		t.Errorf("a message that came twice stands there %d times", n)
	}
}

func TestBox_wait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(time.Now)
		got := make(chan []Message)
		go func() { got <- b.Wait(t.Context(), Filter{To: "ada@acme.test"}) }()
		synctest.Wait()
		put(t, b, "bob@acme.test", mail.Confirmation)
		synctest.Wait()
		select {
		case list := <-got:
			t.Errorf("woken by another's mail: %+v", list)
		default:
		}
		put(t, b, "ada@acme.test", mail.Confirmation)
		if list := <-got; len(list) != 1 {
			t.Errorf("%+v", list)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if list := b.Wait(ctx, Filter{To: "nobody"}); list == nil || len(list) != 0 {
			t.Errorf("%+v", list)
		}
	})
}

// TestServe: real sockets; a waiting caller is released when it ends.
func TestServe(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	b := newBox()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Serve(ctx, l, log) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	waiting := make(chan string, 1)
	go func() {
		resp, err := client.Get("http://" + l.Addr().String() + "/messages?wait=20")
		if err != nil {
			waiting <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		waiting <- strings.TrimSpace(string(text))
	}()
	resp, err := client.Get("http://" + l.Addr().String() + "/latest/code")
	if err != nil || resp.StatusCode != 404 {
		t.Errorf("%v %v", resp, err)
	}
	resp.Body.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	<-waiting

	all, err := net.Listen("tcp", "0.0.0.0:0")
	must.Succeed(t, err)
	if err := b.Serve(t.Context(), all, log); err == nil {
		t.Error("it serves the whole world")
	}
}
