package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/must"
)

type store struct {
	URL  string `env:"URL" secret:"url"`
	Auth string `env:"AUTH" secret:"true"`
	Size int    `env:"POOL_SIZE" envDefault:"10" min:"1"`
}

type sample struct {
	Mode    string            `env:"MODE_OF_USE" envDefault:"one" oneof:"one two" fold:"true"`
	Exact   string            `env:"EXACT" envDefault:"FILE" oneof:"FILE XDS"`
	Flag    bool              `env:"FLAG" envDefault:"true"`
	Count   int64             `env:"COUNT" envDefault:"300"`
	Small   uint32            `env:"SMALL"`
	Ratio   float32           `env:"RATIO" envDefault:"0.8" min:"0" max:"1"`
	Rate    float64           `env:"RATE"`
	Wait    time.Duration     `env:"WAIT" envDefault:"10s" min:"1us"`
	Hosts   []string          `env:"HOSTS"`
	Tags    map[string]string `env:"TAGS"`
	Store   store             `envPrefix:"STORE_"`
	Twin    store             `envPrefix:"STORE_TWIN_"`
	notOurs int               //lint:ignore U1000 a field that is not exported is no setting
}

var options = Options{
	Aliases: []Alias{
		{Old: "OLD_MODE", New: "MODE_OF_USE"}, {Old: "OLDER_MODE", New: "MODE_OF_USE"},
		{Old: "REDIS_*", New: "STORE_"}, {Old: "OLD_AUTH", New: "STORE_AUTH"},
		{Old: "POOL_SIZE_OF_OLD", New: "STORE_POOL_SIZE"},
	},
	OldPrefixes: []Alias{{Old: "REDIS_", New: "STORE_"}},
	ListAll:     "the check lists all",
	Known:       []string{"STORE_LATER", "STORE_NAMED_*"},
	Prefixes:    []string{"STORE_"},
	Foreign:     []string{"STORE_FOREIGN_"},
}

func TestLoad(t *testing.T) {
	f := func(environ string, want func(*sample)) {
		t.Helper()
		var got sample
		if err := Load(&got, strings.Fields(environ), options).Err(); err != nil {
			t.Errorf("%s: %v", environ, err)
		}
		expected := sample{
			Mode: "one", Exact: "FILE", Flag: true, Count: 300, Ratio: 0.8, Wait: 10 * time.Second,
			Store: store{Size: 10}, Twin: store{Size: 10},
		}
		want(&expected)
		if d := cmp.Diff(expected, got, cmp.AllowUnexported(sample{})); d != "" {
			t.Errorf("%s: %s", environ, d)
		}
	}
	f("", func(*sample) {})
	f("MODE_OF_USE= COUNT= FLAG= WAIT= RATIO= TAGS=", func(*sample) {}) // empty is unset
	f("MODE_OF_USE=TWO", func(s *sample) { s.Mode = "two" })
	f("FLAG=F", func(s *sample) { s.Flag = false })
	f("COUNT=0x10 SMALL=010 STORE_POOL_SIZE=4_000", func(s *sample) { s.Count, s.Small, s.Store.Size = 16, 8, 4000 })
	f("COUNT=-1 SMALL=4294967295", func(s *sample) { s.Count, s.Small = -1, 4294967295 })
	f("WAIT=150us RATIO=1 RATE=1e3", func(s *sample) { s.Wait, s.Ratio, s.Rate = 150*time.Microsecond, 1, 1000 })
	f("HOSTS=a:1,,b:2, TAGS=k:v:w,l:,m:x", func(s *sample) {
		s.Hosts, s.Tags = []string{"a:1", "b:2"}, map[string]string{"k": "v:w", "l": "", "m": "x"}
	})
	f("STORE_URL=h:1 STORE_TWIN_URL=h:2 STORE_AUTH=a=b", func(s *sample) {
		s.Store.URL, s.Twin.URL, s.Store.Auth = "h:1", "h:2", "a=b"
	})
	f("OLD_MODE=two REDIS_TWIN_POOL_SIZE=3", func(s *sample) { s.Mode, s.Twin.Size = "two", 3 })
	f("OLD_MODE=two MODE_OF_USE=two OLDER_MODE=two", func(s *sample) { s.Mode = "two" })
}

// TestLoad_mistakes holds the text of every error that one environment can have.
func TestLoad_mistakes(t *testing.T) {
	f := func(environ string, want ...string) {
		t.Helper()
		r := Load(new(sample), strings.Fields(environ), options)
		if d := cmp.Diff(want, r.Mistakes); d != "" {
			t.Errorf("%s: %s", environ, d)
		}
	}
	f("FLAG=yes", `FLAG="yes": not a yes or no: true, false, 1, 0`)
	f("COUNT=ten", `COUNT="ten": not a whole number, such as 10 or 0x10`)
	f("COUNT=tcp://10.0.0.1:80",
		`COUNT="tcp://10.0.0.1:80": not a whole number, such as 10 or 0x10 (Kubernetes sets such variables for each service: enableServiceLinks: false)`)
	f("COUNT=9223372036854775808", `COUNT="9223372036854775808": out of range`)
	f("SMALL=-1", `SMALL="-1": not a whole number, such as 10 or 0x10`)
	f("RATIO=half", `RATIO="half": not a number, such as 0.8`)
	f("RATIO=1.5", `RATIO="1.5": must be at most 1`)
	f("RATIO=NaN", `RATIO="NaN": must be at least 0`, `RATIO="NaN": must be at most 1`)
	f("WAIT=10", `WAIT="10": not a duration, such as 10s, 150us, 1h30m: a number needs its unit`)
	f("WAIT=0", `WAIT="0": must be at least 1us`)
	f("TAGS=a:b,c", `TAGS="a:b,c": item "c" is not name:value`)
	f("TAGS=a:b,a:c", `TAGS="a:b,a:c": "a" is given twice`)
	f("MODE_OF_USE=three", `MODE_OF_USE="three": must be one or two`)
	f("EXACT=file", `EXACT="file": must be FILE or XDS`)
	f("STORE_TWIN_POOL_SIZE=0", `STORE_TWIN_POOL_SIZE="0": must be at least 1`)
	f("REDIS_POOL_SIZE=x", `REDIS_POOL_SIZE="x": not a whole number, such as 10 or 0x10`)
	f("OLD_MODE=one MODE_OF_USE=two",
		`OLD_MODE and MODE_OF_USE are both set and differ: OLD_MODE is the old name of MODE_OF_USE, remove it`)
	f("OLD_MODE=one OLDER_MODE=two",
		`OLDER_MODE and OLD_MODE are both set and differ: OLDER_MODE is the old name of MODE_OF_USE, remove it`)
	f("REDIS_URL=redis://u:one@h STORE_URL=redis://u:two@h",
		`REDIS_URL and STORE_URL are both set and differ: REDIS_URL is the old name of STORE_URL, remove it`)
	f("STORE_AUTH=x STORE_AUTH_FILE=/y", `STORE_AUTH and STORE_AUTH_FILE are both set: keep one`)
	f("STORE_AUTH_FILE=/dev/zero", `STORE_AUTH_FILE: /dev/zero is larger than 65536 bytes`)
	f("STORE_AUTH_FILE=/does/not/exist", `STORE_AUTH_FILE: open /does/not/exist: no such file or directory`)
	f("FLAG=2 COUNT=x WAIT=1", // all at once
		`FLAG="2": not a yes or no: true, false, 1, 0`,
		`COUNT="x": not a whole number, such as 10 or 0x10`,
		`WAIT="1": not a duration, such as 10s, 150us, 1h30m: a number needs its unit`)
}

// TestLoad_fields shows what becomes of the fields whose variables are wrong or unset, and which may not be there.
func TestLoad_fields(t *testing.T) {
	s := sample{Count: 7, Small: 7, Hosts: []string{"x"}}
	Load(&s, []string{"COUNT=ten"}, options)
	if s.Count != 0 || s.Small != 7 || len(s.Hosts) != 1 {
		t.Errorf("a wrong variable gave %d, want 0; unset ones without default gave %d and %q, want 7 and [x]", s.Count,
			s.Small, s.Hosts)
	}
	defer func() {
		if got, want := recover(), "settings: A: a int8 has no parser"; got != want {
			t.Errorf("a field of a type without a parser: %v, want %s", got, want)
		}
	}()
	Load(&struct {
		A int8 `env:"A"`
	}{}, nil, options)
}

func TestSeconds(t *testing.T) {
	f := func(text string, want time.Duration, mistakes ...string) {
		t.Helper()
		o := options
		o.Seconds = true
		var s sample
		r := Load(&s, []string{"WAIT=" + text}, o)
		if d := cmp.Diff(mistakes, r.Mistakes); d != "" || s.Wait != want {
			t.Errorf("%s: %v %s", text, s.Wait, d)
		}
	}
	f("90", 90*time.Second)
	f("1h30m", 90*time.Minute)
	f("150us", 150*time.Microsecond)
	f("9223372036", 9223372036*time.Second)
	f("9223372037", 0, `WAIT="9223372037": out of range`)
	f("99999999999999999999", 0, `WAIT="99999999999999999999": out of range`)
	f("1.5", 0, `WAIT="1.5": not a duration: a number of seconds, or 10s, 150us, 1h30m`)
	f("ten", 0, `WAIT="ten": not a duration: a number of seconds, or 10s, 150us, 1h30m`)
	f("0", 0, `WAIT="0": must be at least 1us`)
}

func TestReport_hidesSecrets(t *testing.T) {
	r := Load(new(sample), []string{"STORE_AUTH=hunter2", "STORE_URL=redis://u:hunter2@h:1/0"}, options)
	r.Wrong("STORE_AUTH", "no good")
	r.Wrong("STORE_URL", "no good")
	want := []string{`STORE_AUTH: no good`, `STORE_URL="redis://***@h:1/0": no good`}
	if d := cmp.Diff(want, r.Mistakes); d != "" {
		t.Error(d)
	}
	text := r.Err().Error()
	if want := "settings: 2 errors:\n  STORE_AUTH: no good\n  STORE_URL=\"redis://***@h:1/0\": no good"; text != want {
		t.Errorf("got %q", text)
	}
}

func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	f := func(content, want string) {
		t.Helper()
		path := filepath.Join(dir, "secret")
		must.Succeed(t, os.WriteFile(path, []byte(content), 0o600))
		for _, name := range []string{"STORE_AUTH_FILE", "OLD_AUTH_FILE", "REDIS_AUTH_FILE"} {
			var s sample
			r := Load(&s, []string{name + "=" + path}, options)
			got := s.Store.Auth
			if err := r.Err(); err != nil {
				got = err.Error()
			}
			if want := strings.ReplaceAll(want, "NAME", name); got != strings.ReplaceAll(want, "PATH", path) {
				t.Errorf("%s with %q: got %q, want %q", name, content, got, want)
			}
		}
	}
	f("secret", "secret")
	f("secret\n", "secret")
	f("secret\r\n", "secret")
	f("secret\n\n", "secret\n")
	f(" se cret ", " se cret ")
	f("", "settings: NAME: PATH is empty")
	f("\n", "settings: NAME: PATH is empty")
	f(strings.Repeat("x", secretBytes+1), "settings: NAME: PATH is larger than 65536 bytes")
}

// A message about a name is about the variable that the operator wrote.
func TestNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	must.Succeed(t, os.WriteFile(path, []byte("secret"), 0o600))
	r := Load(new(sample), []string{"STORE_AUTH_FILE=" + path, "STORE_URL=redis://h:1"}, options)
	if d := cmp.Diff([]string{"STORE_AUTH_FILE", "STORE_URL"}, r.Names()); d != "" {
		t.Error(d)
	}
	if !r.IsSet("STORE_AUTH") || r.Text("STORE_AUTH") != "secret" {
		t.Error("the secret from the file is not set")
	}
	for _, name := range []string{"STORE_URL_FILE", "REDIS_URL_FILE"} { // the variable's value is a path
		if got := Load(new(sample), []string{name + "=" + path}, options).Shown("STORE_URL"); got != name {
			t.Errorf("a URL from a file is shown as %s, want %s", got, name)
		}
	}
	r = Load(new(sample), []string{"REDIS_URL=redis://u:secret@h:1"}, options)
	if got, want := r.Shown("STORE_URL"), `REDIS_URL="redis://***@h:1"`; got != want {
		t.Errorf("a URL is shown as %s, want %s", got, want)
	}
}

func TestWarnings(t *testing.T) {
	f := func(environ string, want ...string) {
		t.Helper()
		r := Load(new(sample), strings.Fields(environ), options)
		if d := cmp.Diff(want, r.Warnings); d != "" {
			t.Errorf("%s: %s", environ, d)
		}
	}
	f("STORE_POOL_SIZES=1",
		"STORE_POOL_SIZES is no setting of this program and has no effect; did you mean STORE_POOL_SIZE?")
	f("STORE_COMPLETELY_DIFFERENT=1", "STORE_COMPLETELY_DIFFERENT is no setting of this program and has no effect")
	f("MODE_OFF_USE=1", "MODE_OFF_USE is no setting of this program and has no effect; did you mean MODE_OF_USE?")
	f("FLAGS=1 PATH=/bin HOME=/root COUNTRY=x")
	f("STORE_LATER=1 STORE_NAMED_A=2 STORE_FOREIGN_X=1")
	f("STORE_SERVICE_HOST=1.2.3.4 STORE_PORT_6379_TCP_ADDR=1.2.3.4 STORE_PORT=tcp://1.2.3.4:6379 " +
		"STORE_SERVICE_PORT_MAIN=1")
	f("OLD_MODE=two", "OLD_MODE is an old name; it is called MODE_OF_USE now")
	f("REDIS_TYPO=1",
		"REDIS_TYPO is an old name; it is called STORE_TYPO now",
		"STORE_TYPO is no setting of this program and has no effect")
	// A typo in an old name.
	f("POOLSIZE_OF_OLD=1",
		"POOLSIZE_OF_OLD is no setting of this program and has no effect; did you mean POOL_SIZE_OF_OLD, the old "+
			"name of STORE_POOL_SIZE?")
	f("OLD_AUTH_FIL=/x",
		"OLD_AUTH_FIL is no setting of this program and has no effect; did you mean OLD_AUTH_FILE, the old name of "+
			"STORE_AUTH_FILE?")
}

// Names whose prefix alone changed are one line of a daemon's log, all others a line each.
func TestOldNames_brief(t *testing.T) {
	f := func(environ string, want ...string) {
		t.Helper()
		r := Load(new(sample), strings.Fields(environ), options)
		if d := cmp.Diff(want, r.Brief()); d != "" {
			t.Errorf("%s: %s", environ, d)
		}
	}
	f("")
	f("REDIS_URL=h:1", "REDIS_URL is an old name; it is called STORE_URL now")
	f("REDIS_URL=h:1 OLD_MODE=two", "OLD_MODE is an old name; it is called MODE_OF_USE now",
		"REDIS_URL is an old name; it is called STORE_URL now")
	f("REDIS_URL=h:1 OLD_MODE=two REDIS_AUTH=x", "OLD_MODE is an old name; it is called MODE_OF_USE now",
		"2 settings have old names, whose prefix alone changed: REDIS_AUTH is STORE_AUTH now, REDIS_URL is STORE_URL "+
			"now")
	f("REDIS_URL=h:1 REDIS_AUTH=x REDIS_POOL_SIZE=2 REDIS_TWIN_URL=h:2 STORE_TWIN_X=1",
		"4 settings have old names, whose prefix alone changed: REDIS_AUTH is STORE_AUTH now, REDIS_POOL_SIZE is "+
			"STORE_POOL_SIZE now, REDIS_TWIN_URL is STORE_TWIN_URL now, …; the check lists all",
		"STORE_TWIN_X is no setting of this program and has no effect; did you mean STORE_TWIN_URL?")
	r := Load(new(sample), strings.Fields("REDIS_URL=h:1 REDIS_AUTH=x STORE_POOL_SIZE=3"), options)
	for name, want := range map[string]string{"STORE_URL": "REDIS_URL", "STORE_POOL_SIZE": "STORE_POOL_SIZE",
		"STORE_TWIN_URL": "STORE_TWIN_URL"} {
		if got := r.Spelled(name); got != want {
			t.Errorf("%s is spelled %s, want %s", name, got, want)
		}
	}
	if len(r.Warnings) != 2 {
		t.Errorf("all warnings: %q", r.Warnings)
	}
}

func TestMaskURL(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := MaskURL(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	f("host:6379", "host:6379")
	f("/run/redis.sock", "/run/redis.sock")
	f("master,h:1,h:2", "master,h:1,h:2")
	f("redis://h:1/0", "redis://h:1/0")
	f("redis://u:p@h:1/0", "redis://***@h:1/0")
	f("redis://u:p@q@h:1?password=x@y", "redis://***")
	f("redis://u:p@ss,w/ord@h:1/0", "redis://***@h:1/0")
	f("redis://h:1?password=x&db=2&username=y", "redis://h:1?password=***&db=2&username=***")
	f("redis://h:1?password=x@y", "redis://***")
	f("u:p@h:1", "***@h:1")
}

func TestFields(t *testing.T) {
	fields, err := Fields(new(sample))
	if err != nil || len(fields) != 16 || fields[15].Name != "STORE_TWIN_POOL_SIZE" || fields[15].Default != "10" {
		t.Errorf("%v, %v", fields, err)
	}
	if _, err := Fields(sample{}); err == nil {
		t.Error("a struct that is no pointer passed")
	}
	if _, err := Fields(&struct {
		A int `env:"A"`
		B int `env:"A"`
	}{}); err == nil {
		t.Error("two fields of one name passed")
	}
}

// FuzzMap: whatever comes, the parser ends, items have trimmed, non-empty names, and writing
// the result out and reading it again gives the same.
func FuzzMap(f *testing.F) {
	for _, s := range []string{"", "a:b", "a:b:c, d : e ,", ":", ",,", "a", "a:b,a:b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		m, err := Map(in)
		if err != nil {
			return
		}
		var items []string
		for k, v := range m {
			if k == "" || strings.TrimSpace(k) != k || strings.TrimSpace(v) != v {
				t.Fatalf("%q gave %q:%q", in, k, v)
			}
			items = append(items, k+":"+v)
		}
		again, err := Map(strings.Join(items, ","))
		if d := cmp.Diff(m, again); d != "" || err != nil {
			t.Fatalf("%q: %v %s", in, err, d)
		}
	})
}
