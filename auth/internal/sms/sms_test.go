package sms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/outbound"
	"gatehouse/auth/internal/sms/smstest"
	"gatehouse/shared/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var providers = []string{"twilio", "messagebird", "textlocal", "vonage"}

// settings lead to the fake.
func settings(provider, base string) Settings {
	return Settings{
		Provider: provider,
		Twilio: Twilio{AccountSID: smstest.AccountSID, AuthToken: smstest.AuthToken, From: smstest.From,
			URL: base},
		MessageBird: MessageBird{AccessKey: smstest.AccessKey, Originator: smstest.Originator, URL: base + "/"},
		Textlocal:   Textlocal{APIKey: smstest.TextlocalKey, Sender: smstest.TextlocalSender, URL: base},
		Vonage: Vonage{APIKey: smstest.VonageKey, APISecret: smstest.VonageSecret, From: smstest.VonageFrom,
			URL: base},
		Timeout: 20 * time.Second,
	}
}

func gateway(t *testing.T, s Settings) *Gateway {
	t.Helper()
	g := New(s)
	if g == nil {
		t.Fatalf("no gateway: lacks %v", s.Missing())
	}
	t.Cleanup(g.Close)
	return g
}

func message(channel string) mail.SMS {
	return mail.SMS{To: "4915112345678", Text: "Your code is 987654", Token: "987654", Kind: "sms", Channel: channel}
}

// Every gateway gets exactly its own request, which the fake holds to the letter.
func TestSend(t *testing.T) {
	t.Parallel()
	s := smstest.Start(t)
	for i, name := range providers {
		g := gateway(t, settings(name, s.URL()))
		if err := g.SendText(t.Context(), uuid.New(), message("sms")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := s.Taken()[i]
		if got.Gateway != name || got.To != "4915112345678" || got.Text != "Your code is 987654" ||
			got.Channel != "sms" {
			t.Errorf("%s took %+v", name, got)
		}
		if g.String() != name+" at "+s.URL() {
			t.Error(g)
		}
	}
	want := url.Values{"To": {"+4915112345678"}, "Channel": {"sms"}, "From": {smstest.From},
		"Body": {"Your code is 987654"}}
	if d := cmp.Diff(want, s.Taken()[0].Form); d != "" {
		t.Error(d)
	}

	// A text beyond ASCII is said to be one where the gateway wants that.
	m := message("sms")
	m.Text = "Ihr Schlüssel: 987654"
	if err := gateway(t, settings("vonage", s.URL())).SendText(t.Context(), uuid.New(), m); err != nil ||
		s.Taken()[4].Form.Get("type") != "unicode" {
		t.Errorf("%v %v", err, s.Taken()[4])
	}
}

// WhatsApp is a channel of Twilio's alone.
func TestSend_whatsApp(t *testing.T) {
	t.Parallel()
	s := smstest.Start(t)
	set := settings("twilio", s.URL())
	send := func() url.Values {
		t.Helper()
		must.Succeed(t, gateway(t, set).SendText(t.Context(), uuid.New(), message("whatsapp")))
		taken := s.Taken()
		return taken[len(taken)-1].Form
	}
	check := func(want url.Values) {
		t.Helper()
		if d := cmp.Diff(want, send()); d != "" {
			t.Error(d)
		}
	}
	check(url.Values{"To": {"whatsapp:+4915112345678"}, "Channel": {"whatsapp"}, "From": {smstest.From},
		"Body": {"Your code is 987654"}})
	set.Twilio.From = "+49 151 0000000"
	check(url.Values{"To": {"whatsapp:+4915112345678"}, "Channel": {"whatsapp"}, "From": {"whatsapp:+49 151 0000000"},
		"Body": {"Your code is 987654"}})
	set.Twilio.ContentSID = smstest.ContentSID
	check(url.Values{"To": {"whatsapp:+4915112345678"}, "Channel": {"whatsapp"}, "From": {"whatsapp:+49 151 0000000"},
		"ContentSid": {smstest.ContentSID}, "ContentVariables": {`{"1": "987654"}`}})
	asked := s.Asked()
	for _, name := range providers[1:] {
		err := gateway(t, settings(name, s.URL())).SendText(t.Context(), uuid.New(), message("whatsapp"))
		if _, refused := errors.AsType[*mail.Refused](err); !refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.Asked() != asked {
		t.Error("a gateway was asked for a channel that it doesn't have")
	}
}

// What gateways say of failures: whether it is tried again, and in which words.
func TestSend_failures(t *testing.T) {
	t.Parallel()
	s := smstest.Start(t)
	const retry, final = false, true
	for _, c := range []struct {
		gateway string
		answer  smstest.Answer
		final   bool
		want    string
	}{
		{"twilio", smstest.Answer{Status: 201,
			Body: `{"sid":"SM1","status":"failed","error_code":30006,"error_message":"Landline"}`}, final,
			"Landline 30006 for message SM1"},
		{"twilio",
			smstest.Answer{
				Body: `{"sid":"SM1","status":"undelivered","error_code":"30001","error_message":"Queue overflow"}`},
			retry, "Queue overflow 30001 for message SM1"},
		{"twilio", smstest.Answer{Body: `{"sid":"SM1","status":"failed","error_code":null,"error_message":null}`},
			final, " for message SM1"},
		{"twilio", smstest.Answer{Status: 400,
			Body: `{"code":21211,"message":"The 'To' number +4915112345678 is not valid.","more_info":"https://www.twilio.com/docs/errors/21211","status":400}`}, final,
			"400: The 'To' number <recipient> is not valid. (code 21211) More information: " +
				"https://www.twilio.com/docs/errors/21211"},
		{"twilio", smstest.Answer{Status: 400, Body: `{"code":21606,"message":"bad From","status":400}`}, retry,
			"400: bad From (code 21606)"}, {"twilio", smstest.Answer{Status: 400, Body: `{}`}, retry, "400:  (code )"},
		{"twilio", smstest.Answer{Status: 401, Body: `{"code":20003,"message":"Authenticate"}`}, retry,
			"401: Authenticate (code 20003)"},
		{"twilio", smstest.Answer{Status: 404, Body: `{"code":20404,"message":"no such account"}`}, retry,
			"404: no such account (code 20404)"},
		{"twilio", smstest.Answer{Status: 429, Body: `{"code":20429,"message":"Too Many Requests"}`}, retry,
			"429: Too Many Requests (code 20429)"},
		{"twilio", smstest.Answer{Status: 500, Body: `{"code":20500,"message":"Internal"}`}, retry,
			"500: Internal (code 20500)"},
		{"twilio", smstest.Answer{Status: 202, Body: `{"sid":"SM1","status":"queued"}`}, retry, "202: "},
		{"messagebird", smstest.Answer{Status: 401,
			Body: `{"errors":[{"code":2,"description":"Request not allowed (incorrect access_key)"}]}`}, retry,
			"401: Request not allowed (incorrect access_key) (code 2)"},
		{"messagebird", smstest.Answer{Status: 422,
			Body: `{"errors":[{"code":25,"description":"Not enough balance"}]}`},
			retry, "422: Not enough balance (code 25)"},
		{"messagebird", smstest.Answer{Status: 422,
			Body: `{"errors":[{"code":10,"description":"4915112345678 is invalid"}]}`}, final,
			"422: <recipient> is invalid (code 10)"},
		{"messagebird", smstest.Answer{Status: 400, Body: `{"errors":[]}`}, retry, "it answers 400"},
		{"messagebird", smstest.Answer{Body: `{"id":"1","recipients":{"totalSentCount":0}}`}, retry,
			"total sent count is 0"},
		{"messagebird", smstest.Answer{Body: `{"id":"1"}`}, retry, "total sent count is 0"},
		{"messagebird", smstest.Answer{Status: 500, Body: `{"recipients":{"totalSentCount":1}}`}, retry,
			"it answers 500"},
		{"textlocal", smstest.Answer{Body: `{"errors":[{"code":80,"message":"Invalid template"}],"status":"failure"}`},
			final, "Invalid template (code 80): AUTH_SMS_TEMPLATE is none of the texts that are registered with it"},
		{"textlocal", smstest.Answer{
			Body: `{"errors":[{"code":3,"message":"Invalid login details"}],"status":"failure"}`},
			retry, "Invalid login details (code 3)"},
		{"textlocal", smstest.Answer{
			Body: `{"errors":[{"code":"32","message":"Invalid number format"}],"status":"failure"}`},
			final, "Invalid number format (code 32)"},
		{"textlocal", smstest.Answer{Body: `{"errors":[],"status":"failure"}`}, retry, `status "failure"`},
		{"textlocal", smstest.Answer{Status: 503, Body: `{"status":"success","messages":[{"id":"1"}]}`}, retry,
			"it answers 503"},
		{"vonage", smstest.Answer{Body: `{"messages":[{"status":"4","error-text":"Bad Credentials"}]}`}, retry,
			"Bad Credentials (status: 4) for message"},
		{"vonage", smstest.Answer{Body: `{"messages":[{"status":"1","error-text":"Throttled"}]}`}, retry,
			"Throttled (status: 1) for message"},
		{"vonage", smstest.Answer{Body: `{"messages":[{"status":"7","error-text":"Number barred","message-id":"0A"}]}`},
			final, "Number barred (status: 7) for message 0A"},
		{"vonage", smstest.Answer{Body: `{"messages":[]}`}, retry, "Internal Error (it answers 200)"},
		{"vonage", smstest.Answer{Status: 502, Body: `{"messages":[{"status":"0"}]}`}, retry, "it answers 502"},
	} {
		s.Behave(smstest.Always(c.answer))
		err := gateway(t, settings(c.gateway, s.URL())).SendText(t.Context(), uuid.New(), message("sms"))
		_, refused := errors.AsType[*mail.Refused](err)
		if want := "sms: " + c.gateway + ": " + strings.TrimSpace(c.want); err == nil ||
			!strings.HasPrefix(strings.Join(strings.Fields(err.Error()), " "),
				strings.Join(strings.Fields(want), " ")) ||
			refused != c.final {
			t.Errorf("%s %+v: final %v, %v\nwant %v, %s", c.gateway, c.answer, refused, err, c.final, want)
		}
	}
	if n := len(s.Taken()); n != 0 {
		t.Errorf("%d were taken", n)
	}
}

// What no gateway says: nothing, something else, too much, too late, another address.
func TestSend_hostile(t *testing.T) {
	t.Parallel()
	s, elsewhere := smstest.Start(t), smstest.Start(t)
	for _, name := range providers {
		for _, a := range []smstest.Answer{
			{Body: "<html>Welcome</html>"}, {Body: ""}, {Body: "[]"}, {Body: `"x"`}, {Status: 400, Body: "<html>"},
			{Status: 204}, {Drop: true}, {Body: `{"sid":"` + strings.Repeat("x", maxAnswer) + `"}`},
			{Status: 307, Location: elsewhere.URL() + "/send"}, {Status: 302, Location: "/messages", Body: "{}"},
			{Hang: true},
		} {
			set := settings(name, s.URL())
			if a.Hang {
				set.Timeout = 50 * time.Millisecond
			}
			s.Behave(smstest.Always(a))
			asked := s.Asked()
			err := gateway(t, set).SendText(t.Context(), uuid.New(), message("sms"))
			if _, refused := errors.AsType[*mail.Refused](err); err == nil || refused {
				t.Errorf("%s: %.60v: %v", name, a, err)
			}
			if n := s.Asked() - asked; n != 1 {
				t.Errorf("%s: %.60v: asked %d times", name, a, n)
			}
			clean(t, err)
		}
		set := settings(name, s.URL())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := gateway(t, set).SendText(ctx, uuid.New(), message("sms")); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if n := elsewhere.Asked(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
}

// clean fails when an error holds what must not be kept.
func clean(t *testing.T, err error) {
	t.Helper()
	text := fmt.Sprint(err)
	for _, s := range append(smstest.Secrets(), "987654", "4915112345678", "2345678", "/Accounts/",
		url.QueryEscape(smstest.TextlocalKey)) {
		if strings.Contains(text, s) {
			t.Errorf("an error holds %q: %s", s, text)
		}
	}
	if strings.ContainsAny(text, "\r\n") || len(text) > 1200 {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

// A gateway that repeats all that it was sent gets none of it into an error.
func TestSend_secrets(t *testing.T) {
	t.Parallel()
	s := smstest.Start(t)
	for i, name := range providers {
		s.Behave(func(q smstest.Request) *smstest.Answer {
			words, err := json.Marshal("no\r\n" + smstest.Secrets()[i] + q.Form.Encode() +
				" " + fmt.Sprint(q.Form) + " +49 (151) 123-456-78 01511/2345678 98-76-54")
			if err != nil {
				t.Error(err)
			}
			return &smstest.Answer{Status: 400,
				Body: fmt.Sprintf(`{"code":"1","message":%[1]s,"errors":[{"code":1,"message":%[1]s,"description":%[1]s}],"messages":[{"status":"1","error-text":%[1]s}]}`, words)}
		})
		err := gateway(t, settings(name, s.URL())).SendText(t.Context(), uuid.New(), message("sms"))
		if err == nil || !strings.Contains(err.Error(), "no ") {
			t.Error(err)
		}
		clean(t, err)
	}
}

// What is no number never leaves the house.
func TestSend_numbers(t *testing.T) {
	t.Parallel()
	s := smstest.Start(t)
	g := gateway(t, settings("vonage", s.URL()))
	for _, to := range []string{"", "+4915112345678", "015112345678", "49151x", "1234567890123456", "1\r\n2"} {
		m := message("sms")
		m.To = to
		if _, refused := errors.AsType[*mail.Refused](g.SendText(t.Context(), uuid.New(), m)); !refused {
			t.Errorf("%q", to)
		}
	}
	if s.Asked() != 0 {
		t.Error("the gateway was asked")
	}
}

// Check queries each gateway about the account, and sends nothing.
func TestCheck(t *testing.T) {
	t.Parallel()
	s := smstest.Start(t)
	for _, provider := range providers {
		f := func(change func(*Settings), want string) {
			t.Helper()
			o := settings(provider, s.URL())
			change(&o)
			err := gateway(t, o).Check(t.Context())
			if text := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(text, want) ||
				strings.Contains(text, "hush") {
				t.Errorf("%s: %v, want %q", provider, err, want)
			}
		}
		f(func(*Settings) {}, "")
		wrong := func(o *Settings) {
			o.Twilio.AuthToken, o.MessageBird.AccessKey, o.Textlocal.APIKey, o.Vonage.APISecret = "hush1", "hush2",
				"hush3", "hush4"
		}
		f(wrong, provider+" does not know AUTH_SMS_"+strings.ToUpper(provider)+"_")
		away := func(o *Settings) {
			o.Twilio.URL, o.MessageBird.URL, o.Textlocal.URL, o.Vonage.URL = "http://127.0.0.1:1", "http://127.0.0.1:1",
				"http://127.0.0.1:1", "http://127.0.0.1:1"
		}
		f(away, "calling 127.0.0.1:1: ")
	}
	if s.Asked() > 0 {
		t.Error("something was sent")
	}
}

// Lint reports values of an unusual form, and no others.
func TestLint(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		if got := settings(provider, "").Lint(); len(got) > 0 {
			t.Errorf("%s: %q", provider, got)
		}
		if got := (Settings{Provider: provider}).Lint(); len(got) > 0 {
			t.Errorf("%s, with nothing: %q", provider, got)
		}
	}
	for _, from := range []string{"+1 555 0100", "15550100", "72345", "Gatehouse", "My Shop"} {
		o := settings("twilio", "")
		o.Twilio.From = from
		if got := o.Lint(); len(got) > 0 {
			t.Errorf("%s: %q", from, got)
		}
	}
	wrong := Settings{
		Twilio: Twilio{AccountSID: "SK0123456789abcdef0123456789abcdef", From: "MG0123",
			ContentSID: "MG0123456789abcdef0123456789abcdef"},
		MessageBird: MessageBird{Originator: "Our Company Ltd"}, Textlocal: Textlocal{Sender: "Straße"},
		Vonage: Vonage{From: "twelve chars"},
	}
	for provider, want := range map[string]string{
		"twilio":      "AUTH_SMS_TWILIO_ACCOUNT_SID AUTH_SMS_TWILIO_CONTENT_SID",
		"messagebird": "AUTH_SMS_MESSAGEBIRD_ORIGINATOR",
		"textlocal":   "AUTH_SMS_TEXTLOCAL_SENDER", "vonage": "AUTH_SMS_VONAGE_FROM", "": "",
	} {
		o := wrong
		o.Provider = provider
		var names []string
		for _, doubt := range o.Lint() {
			name, _, _ := strings.Cut(doubt, " ")
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %s, want %s", provider, got, want)
		}
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"":            "",
		"twilio":      "AUTH_SMS_TWILIO_ACCOUNT_SID AUTH_SMS_TWILIO_AUTH_TOKEN AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID",
		"messagebird": "AUTH_SMS_MESSAGEBIRD_ACCESS_KEY AUTH_SMS_MESSAGEBIRD_ORIGINATOR",
		"textlocal":   "AUTH_SMS_TEXTLOCAL_API_KEY AUTH_SMS_TEXTLOCAL_SENDER",
		"vonage":      "AUTH_SMS_VONAGE_API_KEY AUTH_SMS_VONAGE_API_SECRET AUTH_SMS_VONAGE_FROM",
	} {
		s := Settings{Provider: name}
		if got := strings.Join(s.Missing(), " "); got != want || New(s) != nil {
			t.Errorf("%s: %s", name, got)
		}
	}
	for name, base := range map[string]string{"twilio": "https://api.twilio.com",
		"messagebird": "https://rest.messagebird.com",
		"textlocal":   "https://api.textlocal.in", "vonage": "https://rest.nexmo.com"} {
		set := settings(name, "")
		set.MessageBird.URL = ""
		if got := gateway(t, set).String(); got != name+" at "+base {
			t.Error(got)
		}
	}
}

// The id under which the gateway knows a message is in the log of level debug, and nothing of the message.
func TestSend_log(t *testing.T) {
	t.Parallel()
	s := smstest.Start(t)
	var log strings.Builder
	set := settings("twilio", s.URL())
	set.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	id := uuid.New()
	must.Succeed(t, gateway(t, set).SendText(t.Context(), id, message("sms")))
	for _, want := range []string{id.String(), "SM00000000000000000000000000000001", "twilio"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in %s", want, log.String())
		}
	}
	clean(t, errors.New(strings.TrimSpace(log.String())))
}

// FuzzRead: whatever a gateway answers is judged without a panic, and its words come out clean.
func FuzzRead(f *testing.F) {
	for _, body := range []string{
		`{"sid":"SM1","status":"failed","error_code":30006,"error_message":"987654"}`,
		`{"code":21211,"message":"+49 151 123 45678","status":400}`,
		`{"id":"1","recipients":{"totalSentCount":1},"errors":[{"code":null,"description":{}}]}`,
		`{"errors":[{"code":80,"message":"textlocal/key+hush="}],"status":"failure"}`,
		`{"messages":[{"status":4,"error-text":"\u0000\n"}]}`, `[]`, ``, "\xff",
	} {
		for _, status := range []int{200, 400, 500} {
			f.Add(status, []byte(body))
		}
	}
	m := message("sms")
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		for _, name := range providers {
			v := settings(name, "").vendor()
			id, failed := v.read(answer{status, body})
			if failed == nil {
				outbound.Word(id, 64)
				continue
			}
			words := hide(failed.text, m, v.secrets())
			if strings.Contains(words, m.To) || strings.Contains(words, m.Token) || len([]rune(words)) > 250 {
				t.Errorf("%s: %q from %q", name, words, body)
			}
			for _, s := range v.secrets() {
				if strings.Contains(words, s) {
					t.Errorf("%s: %q from %q", name, words, body)
				}
			}
		}
	})
}
