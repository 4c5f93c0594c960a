package test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/captcha/captchatest"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/auth/internal/sms/smstest"
	"gatehouse/shared/alerttest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/telemetry/otlptest"
	"gatehouse/shared/testdb"
)

const userRoute = "/admin/users/{user_id}"

// Every span attribute of the contract, below the caller's span; what is no id stays out.
func TestTracing(t *testing.T) {
	t.Parallel()
	c := otlptest.Start(t)
	d := start(t, environment(testdb.Postgres(t), "AUTH_TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT="+c.HTTP,
		"OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_RESOURCE_ATTRIBUTES=team=accounts,service.name=sign-in",
		"OTEL_EXPORTER_OTLP_HEADERS=x-token=a%20b"))
	g := d.signUp(t, "mia@example.org")
	id := g.body["user"].(map[string]any)["id"].(string)
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	ask := func(path string) {
		t.Helper()
		r, err := http.NewRequest("GET", d.http+path, nil)
		must.Succeed(t, err)
		r.Header.Set("traceparent", "00-"+trace+"-"+parent+"-01")
		r.Header.Set("Authorization", "Bearer "+g.str("access_token"))
		resp, err := http.DefaultClient.Do(r)
		must.Succeed(t, err)
		resp.Body.Close()
	}
	ask("/admin/users/" + id)
	ask("/admin/users/secret@example.org?token=sesame") // neither leaves the process
	ask("/nowhere/secret@example.org")
	d.want(t, 200, "GET", "/health", "", "")
	spans := c.Await(t, "GET "+userRoute, "GET /health", "POST /signup", "GET")
	s := otlptest.Named(t, spans, "GET "+userRoute)
	for name, want := range map[string]string{
		"http.method": "GET", "http.route": userRoute, "http.route.params.user_id": id, "http.status_code": "403",
		"error.code": "not_admin",
	} {
		if s.Attributes[name] != want {
			t.Errorf("%s is %q, want %q", name, s.Attributes[name], want)
		}
	}
	if s.TraceID != trace || s.Parent != parent || s.Kind != "server" || s.Headers["x-token"] != "a b" {
		t.Errorf("%+v", s)
	}
	if r := s.Resource; r["auth.version"] == "" || r["team"] != "accounts" || r["service.name"] != "sign-in" {
		t.Errorf("resource %v", r)
	}
	if s := otlptest.Named(t, spans, "GET"); s.Attributes["http.route"] != "" ||
		s.Attributes["http.status_code"] != "404" {
		t.Errorf("%+v", s)
	}
	must.Succeed(t, d.Stop(20*time.Second))
	for _, s := range c.Spans() {
		for name, value := range s.Attributes {
			if strings.Contains(value+s.Name, "example.org") || strings.Contains(value, "sesame") {
				t.Errorf("%s: %s is %s", s.Name, name, value)
			}
		}
	}
}

// Below a request's span are its statements and the calls that it waits for; a call after the answer has a span of
// its own. Metrics distinguish the calls by receiver, and by whether they were answered.
func TestTracing_calls(t *testing.T) {
	t.Parallel()
	c, h, gateway, solved, idp, smtp, url := otlptest.Start(t), startHooks(t), smstest.Start(t), captchatest.Start(t),
		startIDP(t), smtptest.Start(t, smtptest.Options{}), testdb.Postgres(t)
	execSQL(t, url, `create function claims(event jsonb) returns jsonb language sql as 'select event'`)
	env := append(h.environ(hook.BeforeUserCreated, hook.AfterUserCreated), onSMTP(smtp)...)
	env = append(append(env, gateway.Environ()...), "AUTH_SMS_PROVIDER=twilio", "AUTH_EXTERNAL_PHONE_ENABLED=true",
		"AUTH_HOOK_CUSTOM_ACCESS_TOKEN_ENABLED=true",
		"AUTH_HOOK_CUSTOM_ACCESS_TOKEN_URI=pg-functions://postgres/public/claims",
		"AUTH_SECURITY_CAPTCHA_ENABLED=true", "AUTH_SECURITY_CAPTCHA_SECRET="+captchatest.Secret,
		"AUTH_SECURITY_CAPTCHA_URL="+solved.URL(),
		"AUTH_EXTERNAL_GOOGLE_ENABLED=true", "AUTH_EXTERNAL_GOOGLE_CLIENT_ID=client-google",
		"AUTH_EXTERNAL_GOOGLE_SECRET=secret-google",
		"AUTH_EXTERNAL_GOOGLE_REDIRECT_URI=http://localhost:9999/callback",
		"AUTH_EXTERNAL_GOOGLE_URL="+idp.Base("google"),
		"AUTH_TRACING_ENABLED=true", "AUTH_METRICS_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT="+c.HTTP,
		"OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_METRIC_EXPORT_INTERVAL=50")
	d := start(t, environment(url, env...))
	const captcha = `,"gotrue_meta_security":{"captcha_token":"` + captchatest.Solved + `"}}`
	d.want(t, 200, "POST", "/signup", "", `{"email":"mia@example.org","password":"a long enough one"`+captcha)
	d.want(t, 400, "POST", "/token?grant_type=password", "",
		`{"email":"mia@example.org","password":"a long enough one"`+captcha) // not confirmed
	d.want(t, 200, "POST", "/otp", "", `{"phone":"+4915112345678"`+captcha)
	await.True(t, "the SMS", func() bool { return len(gateway.Taken()) == 1 })
	d.want(t, 200, "POST", "/verify", "",
		`{"type":"sms","phone":"+4915112345678","token":"`+code(t, gateway.Taken()[0].Text)+`"}`)
	gateway.Behave(smstest.Always(smstest.Answer{Status: 500, Body: "{}"}))
	if resp, err := http.DefaultTransport.RoundTrip(httptest.NewRequest("GET", d.http+"/authorize?provider=google",
		nil)); err != nil || resp.StatusCode != 302 {
		t.Fatal(resp, err)
	}
	below := map[string][]string{
		"POST /signup":   {"captcha hcaptcha", "hook before-user-created", "batch"},
		"POST /verify":   {"hook customize-access-token", "batch", "begin", "commit"},
		"GET /authorize": {"provider google", "batch"},
		"":               {"smtp", "sms twilio", "hook after-user-created"},
	}
	var all []string
	for parent, children := range below {
		if all = append(all, children...); parent != "" {
			all = append(all, parent)
		}
	}
	spans := c.Await(t, all...)
	for parent, children := range below {
		id := ""
		if parent != "" {
			id = otlptest.Named(t, spans, parent).ID
		}
		for _, name := range children {
			if !slices.ContainsFunc(spans,
				func(s otlptest.Span) bool { return s.Name == name && s.Parent == id && s.Kind == "client" }) {
				t.Errorf("no span %s below %q", name, parent)
			}
		}
	}
	for _, p := range []hook.Point{hook.BeforeUserCreated, hook.AfterUserCreated} {
		s := otlptest.Named(t, spans, "hook "+string(p))
		if q := h.of(p)[0]; q.trace != "00-"+s.TraceID+"-"+s.ID+"-01" {
			t.Errorf("%s was told the trace %q, and the span is %+v", p, q.trace, s)
		}
	}
	if s := otlptest.Named(t, spans, "sms twilio"); s.Attributes["http.method"] != "POST" ||
		s.Attributes["http.status_code"] != "201" || "http://"+s.Attributes["server.address"] != gateway.URL() {
		t.Errorf("%+v", s)
	}
	if s := otlptest.Named(t, spans, "batch"); s.Attributes["db.system"] != "postgresql" ||
		!strings.Contains(s.Attributes["db.statement"], " from users ") {
		t.Errorf("%+v", s)
	}
	for _, s := range spans {
		for name, value := range s.Attributes {
			if strings.Contains(value, "example.org") || strings.Contains(value, "4915112345678") ||
				strings.Contains(value, "hush") {
				t.Errorf("%s: %s is %s", s.Name, name, value)
			}
		}
		if s.Parent == "" && (s.Attributes["db.system"] != "" || s.Name == "batch") {
			t.Errorf("a statement of nobody's: %+v", s)
		}
	}
	d.want(t, 200, "POST", "/otp", "", `{"phone":"+4915112345679"`+captcha)
	for to, outcome := range map[string]string{
		"captcha hcaptcha": "answered", "hook before-user-created": "answered",
		"hook customize-access-token": "answered",
		"provider google":             "answered", "smtp": "answered", "hook after-user-created": "answered",
		"sms twilio": "failed",
	} {
		c.AwaitPoint(t, "auth.outward.call.duration", func(p otlptest.Point) bool {
			return p.Attributes["to"] == to && p.Attributes["outcome"] == outcome && len(p.Attributes) == 2
		})
	}
}

// The standard variables may stand in the settings file, headers in a file of their own; metrics and spans go over
// gRPC too.
func TestMetrics_push(t *testing.T) {
	t.Parallel()
	c := otlptest.Start(t)
	dir := t.TempDir()
	headers := filepath.Join(dir, "headers")
	must.Succeed(t, os.WriteFile(headers, []byte("x-token=secret\n"), 0o600))
	writeSettings(t, dir, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.GRPC, "OTEL_METRIC_EXPORT_INTERVAL=50")
	d := launch(t, dir, environment(testdb.Postgres(t), "AUTH_METRICS_ENABLED=true", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		"OTEL_EXPORTER_OTLP_HEADERS_FILE="+headers, "DEBUG=true"))
	d.awaitReady(t)
	d.want(t, 200, "GET", "/settings", "", "")
	p := c.AwaitPoint(t, "auth.http.requests", func(p otlptest.Point) bool {
		return p.Attributes["http.route"] == "/settings"
	})
	if p.Value != 1 || p.Protocol != "grpc" || p.Headers["x-token"] != "secret" ||
		p.Resource["auth.version"] == "" || p.Resource["service.name"] != "auth" {
		t.Errorf("%+v", p)
	}
	c.AwaitPoint(t, "go.goroutine.count", func(p otlptest.Point) bool { return p.Value > 0 })
	d.log.await(t, `"component":"opentelemetry"`, nil) // DEBUG: at level info, which is logged
}

// TestMetrics_pull: the page has every metric that docs/operations.md lists, and that each one there is.
func TestMetrics_pull(t *testing.T) {
	t.Parallel()
	h := startHooks(t)
	d := start(t, environment(testdb.Postgres(t),
		append(h.environ(hook.AfterUserCreated, hook.SendEmail), "AUTH_HOOK_SEND_SYNC=true",
			"AUTH_METRICS_ENABLED=true", "AUTH_METRICS_EXPORTER=prometheus", "OTEL_EXPORTER_PULL_HOST=127.0.0.1",
			"OTEL_EXPORTER_PULL_PORT=0")...))
	var at struct{ HTTP string }
	d.log.await(t, `"msg":"metrics"`, &at)
	if !strings.HasPrefix(at.HTTP, "127.0.0.1:") {
		t.Errorf("shown at %s", at.HTTP)
	}
	d.want(t, 200, "POST", "/signup", "", `{"email":"mia@example.org","password":"correct horse"}`)
	token, _ := h.of(hook.SendEmail)[0].at("email_data.token").(string)
	d.want(t, 200, "POST", "/verify", "", `{"type":"signup","email":"mia@example.org","token":"`+token+`"}`)
	h.behave(onlyAt(hook.SendEmail, 200, `{"error":{"message":"no"}}`))
	d.want(t, 500, "POST", "/recover", "", `{"email":"mia@example.org"}`)
	d.want(t, 400, "POST", "/token?grant_type=password", "", `{"email":"mia@example.org","password":"wrong"}`)
	d.want(t, 200, "POST", "/token?grant_type=password", "", `{"email":"mia@example.org","password":"correct horse"}`)
	d.want(t, 404, "GET", "/secret@example.org", "", "")
	var page string
	await.True(t, "the news of her", func() bool {
		page = scrape(t, at.HTTP)
		return strings.Contains(page, `auth_outbox_sent_total{channel="hook"} 1`)
	})
	for _, line := range []string{
		`auth_http_requests_total{http_method="POST",http_route="/token",http_status_code="200"} 1`,
		`auth_http_requests_total{http_method="POST",http_route="/token",http_status_code="400"} 1`,
		`auth_http_requests_total{http_method="GET",http_route="",http_status_code="404"} 1`,
		`auth_http_request_duration_seconds_count{http_method="POST",http_route="/token"} 2`,
		`auth_http_request_duration_seconds_bucket{http_method="POST",http_route="/token",le="+Inf"} 2`,
		`auth_sign_ins_total{method="password"} 1`,
		`auth_sign_ins_total{method="otp"} 1`,
		`auth_outbox_sent_total{channel="email"} 1`,
		`auth_outbox_failed_total{channel="email"} 1`,
		`auth_outbox_pending{channel="email"} 0`,
		`auth_outward_call_duration_seconds_count{outcome="answered",to="hook send-email"} 2`,
		`auth_outward_call_duration_seconds_count{outcome="answered",to="hook after-user-created"} 1`,
		`auth_password_refused_total 0`,
	} {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("the page lacks %s", line)
		}
	}
	if !regexp.MustCompile(`(?m)^auth_signing_key_age_seconds [\d.]+$`).MatchString(page) ||
		!regexp.MustCompile(`(?m)^auth_password_hashes_total [3-9]$`).MatchString(page) {
		t.Error(page)
	}
	if strings.Contains(page, "example.org") {
		t.Error("the page holds an address")
	}

	alerttest.Lint(t, page)
	compareDashboard(t, page)
	for _, a := range alerttest.Read(t, alertsDir) {
		onPage(t, page, a.Alert, a.Expr)
	}

	var listed []string // as the page spells them
	_, section, _ := strings.Cut(document(t, "docs/operations.md"), "\n| Metric | By |")
	section, _, _ = strings.Cut(section, "\n\n")
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(section, -1) {
		whole := ""
		for _, m := range regexp.MustCompile("`([a-z_.]+)`").FindAllStringSubmatch(row[1], -1) {
			name := m[1]
			if name[0] == '.' {
				if name = whole + name; !strings.HasSuffix(name, ".max") {
					name = whole[:strings.LastIndex(whole, ".")] + m[1]
				}
			}
			whole = name
			if of, ok := strings.CutSuffix(name, ".count"); ok {
				name = of + "s"
			}
			listed = append(listed, strings.ReplaceAll(name, ".", "_"))
		}
	}
	for _, name := range listed {
		if name == "auth_mirror_refused" || name == "auth_mirror_current" {
			continue // there once the application has refused something, or a mirror is installed
		}
		if !regexp.MustCompile(`(?m)^# TYPE ` + name + `(_seconds|_bytes)?(_total)? `).MatchString(page) {
			t.Errorf("the page lacks %s, which docs/operations.md lists", name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\w+) `).FindAllStringSubmatch(page, -1) {
		name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(m[1], "_total"), "_seconds"), "_bytes")
		if found := strings.Contains(" "+strings.Join(listed, " ")+" ", " "+name+" "); !found && name != "target_info" {
			t.Errorf("docs/operations.md lacks %s", name)
		}
	}
}

// Off is off: no listener, no export, not a word.
func TestTelemetry_off(t *testing.T) {
	t.Parallel()
	c := otlptest.Start(t)
	d := start(t, environment(testdb.Postgres(t), "OTEL_EXPORTER_OTLP_ENDPOINT="+c.HTTP, "OTEL_BSP_SCHEDULE_DELAY=20",
		"AUTH_METRICS_EXPORTER=prometheus", "OTEL_EXPORTER_PULL_PORT=0"))
	d.want(t, 200, "GET", "/settings", "", "")
	if err := d.Stop(20 * time.Second); err != nil { // would send what is left
		t.Fatal(err)
	}
	if n := len(c.Spans()); n > 0 || strings.Contains(d.log.text(), `"msg":"metrics"`) {
		t.Errorf("%d spans\n%s", n, d.log.text())
	}
}

// scrape is the page of metrics at an address.
func scrape(t *testing.T, at string) string {
	t.Helper()
	resp, err := http.Get("http://" + at + "/")
	must.Succeed(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp.Status, err)
	}
	return string(b)
}

// code are the digits in an SMS.
func code(t *testing.T, text string) string {
	t.Helper()
	m := regexp.MustCompile(`\d{6}`).FindString(text)
	if m == "" {
		t.Fatalf("no code in %q", text)
	}
	return m
}

// compareDashboard: each series and label in the dashboard's expressions is on the page.
func compareDashboard(t *testing.T, page string) {
	t.Helper()
	text, err := os.ReadFile("../example/grafana/dashboard.json")
	must.Succeed(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil || len(board.Panels) < 10 {
		t.Fatal(err, len(board.Panels))
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			onPage(t, page, p.Title, target.Expr)
		}
	}
}

var (
	seriesIn = regexp.MustCompile(`\b((?:auth|go)_\w+)(?:\{([^}]*)\})?`)
	labelsIn = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"`)
	grouped  = regexp.MustCompile(`\bby \(([^)]*)\)`)
	scrapers = []string{"job", "instance"} // labels that the scraper adds
)

const alertsDir = "../example/prometheus"

// onPage wants each series that an expression names on a page of metrics, with the labels that it wants of it.
func onPage(t *testing.T, page, where, expr string) {
	t.Helper()
	names := seriesIn.FindAllStringSubmatch(expr, -1)
	if len(names) == 0 {
		t.Errorf("%s: no series in %s", where, expr)
	}
	for _, name := range names {
		line := regexp.MustCompile(`(?m)^` + name[1] + `(\{.*\})? .*$`).FindString(page)
		if line == "" {
			t.Errorf("%s: the page lacks %s", where, name[1])
		}
		var labels []string
		for _, m := range labelsIn.FindAllStringSubmatch(name[2], -1) {
			labels = append(labels, m[1])
		}
		for _, m := range grouped.FindAllStringSubmatch(expr, -1) {
			labels = append(labels, strings.Split(m[1], ", ")...)
		}
		for _, label := range labels {
			if !slices.Contains(scrapers, label) && !strings.Contains(line, label+"=") {
				t.Errorf("%s: %s has no label %s", where, line, label)
			}
		}
	}
}

// TestAlerts: each is shown firing, and not firing where all is well.
func TestAlerts(t *testing.T) {
	t.Parallel()
	alerttest.Fire(t, alertsDir)
}
