package password

import (
	"strings"
	"testing"
)

// Each is a good hash with one thing wrong.
func TestInvalidImports(t *testing.T) {
	f := func(good, old, new string) {
		t.Helper()
		bad := strings.Replace(good, old, new, 1)
		if bad == good {
			t.Fatalf("%s has no %s", good, old)
		}
		if err := ValidImport(good); err != nil {
			t.Fatalf("%s: %v", good, err)
		}
		if err := ValidImport(bad); err == nil {
			t.Errorf("%s is accepted", bad)
		} else if strings.Contains(err.Error(), "c29tZXNhbHQ") || !strings.HasPrefix(err.Error(), "password hash: ") {
			t.Errorf("%s: error %v", bad, err)
		}
	}
	for _, new := range []string{"$2x$05", "$2$05$", "2a$05$C", "$2a$03", "$2a$16", "$2a$31", "$2a$5$C", "$2a$+5",
		"$2A$05"} {
		f(bcryptVector, "$2a$05", new)
	}
	f(bcryptVector, "OeW", "Oe")
	f(bcryptVector, "OeW", "OeWW")
	f(bcryptVector, "OeW", "OeX") // stray bits: no password matches
	f(bcryptVector, "OeW", "Oe+")
	f(bcryptVector, "CCC", "C\nC")

	f(argonVector, "$argon2id", "$argon2d")
	f(argonVector, "$argon2id", "$argon2")
	f(argonVector, "v=19", "v=16")
	f(argonVector, "v=19$", "")
	for _, new := range []string{"m=0", "m=7", "m=262145", "m=1048576", "m=0256", "m=+256", "m=",
		"m=99999999999999999999", "256", "M=256"} {
		f(argonVector, "m=256", new)
	}
	for _, new := range []string{"t=0", "t=21", "t=-1", "t= 2"} {
		f(argonVector, "t=2", new)
	}
	for _, new := range []string{"p=0", "p=17", "p=33", "p=1,keyid=AA", "p=1,data=AA", "p=1,"} {
		f(argonVector, "p=1", new)
	}
	f(argonVector, "m=256,t=2", "t=2,m=256")
	f(argonVector, "c29tZXNhbHQ", "")
	f(argonVector, "c29tZXNhbHQ", "c29tZXNhbA") // 7 bytes
	f(argonVector, "c29tZXNhbHQ", "c29tZXNhbHR")
	f(argonVector, "c29tZXNhbHQ", "c29tZXNhbHQ=")
	f(argonVector, "c29tZXNhbHQ", "c29tZXNhb\nHQ")
	f(argonVector, "nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4", "")
	f(argonVector, "nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4", "nf65EOgLrQMR/uIP")
	f(argonVector, "/uIP", "_uIP")
	f(argonVector, "CHGi/4", "CHGi/4$")

	for _, cut := range []string{"v=1,", "n=14,", "r=8,", "p=1,", "$42xEC+ixf3L2lw=="} {
		f(firebaseVector, cut, "")
	}
	for old, news := range map[string][]string{
		"v=1":     {"v=2", "v=01"},
		"n=14":    {"n=0", "n=18", "n=64", "r=14"},
		"r=8":     {"r=0", "r=17"},
		"p=1":     {"p=0", "p=5"},
		"ss=Bw==": {"ss=Bw", "ss=B$", "ss=Bw==,ss=Bw=="},
		"sk=jxs":  {"sk=jx!", "sl=jxs", "sk="},
		"d5lQ==":  {"d5lQ", "d5lQ==$", "d5l="},
	} {
		for _, new := range news {
			f(firebaseVector, old, new)
		}
	}
	if i := strings.Index(firebaseVector,
		",sk="); ValidImport(firebaseVector[:i]+firebaseVector[strings.Index(firebaseVector, "==$"):]) == nil {
		t.Error("fbscrypt without signer key is accepted")
	}
	if err := ValidImport(strings.Replace(firebaseVector, "ss=Bw==,", "", 1)); err != nil {
		t.Errorf("fbscrypt without separator: %v", err)
	}

	for _, new := range []string{"sha1", "sha384", "SHA256", "sha512"} {
		f(pbkdf2Vector, "sha256", new)
	}
	for _, new := range []string{"$999$", "$2000001$", "$01212$", "$$", "$1e4$"} {
		f(pbkdf2Vector, "$1212$", new)
	}
	f(pbkdf2Vector, "4vjV83LKPjQzk31VI4E0Vw", "")
	f(pbkdf2Vector, "4vjV83LKPjQzk31VI4E0Vw", "4vjV83LKPjQzk31VI4E0Vx")
	f(pbkdf2Vector, "6c.tmQ", "6c+tmQ")
	f(pbkdf2Vector, "6c.tmQ", "6c.t")
	f(pbkdf2Vector, "6c.tmQ", "6c.tmQ$")

	if err := ValidImport(
		"$pbkdf2-sha256$i=310000,l=32$c2FsdHNhbHQ$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g"); err == nil ||
		!strings.Contains(err.Error(), "pbkdf2-sha256 in the PHC format") {
		t.Errorf("PBKDF2 in the PHC format: %v", err)
	}
	for _, bad := range []string{"", "$", "$$", "password", "{SSHA}x", "$1$salt$hash", "$6$salt$hash",
		argonVector + strings.Repeat("A", 1024)} {
		if ValidImport(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{bcryptVector, argonVector, firebaseVector, pbkdf2Vector, "", "$", "$2a$",
		"$argon2id$v=19$m=8,t=1,p=1$$"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := parse(text)
		if err != nil {
			if h != nil || !strings.HasPrefix(err.Error(), "password hash: ") {
				t.Errorf("%q: %v with error %v", text, h, err)
			}
			return
		}
		switch h := h.(type) {
		case bcryptHash:
			if h.cost > maxBcryptCost || h.cost < 4 {
				t.Errorf("%q: cost %d", text, h.cost)
			}
		case argonHash:
			p := h.params
			if p.memory > maxArgonMemory || p.time > maxArgonTime || p.time < 1 ||
				p.threads < 1 || p.threads > maxArgonThreads || len(h.hash) < 16 {
				t.Errorf("%q: %+v", text, h)
			}
		case firebaseHash:
			if h.n > maxScryptN || h.r > maxScryptR || h.p > maxScryptP || h.n < 1 ||
				h.r < 1 || h.p < 1 || len(h.key) != len(h.mac) {
				t.Errorf("%q: %+v", text, h)
			}
		case pbkdf2Hash:
			if h.rounds < minRounds || h.rounds > maxRounds || len(h.hash) < 32 {
				t.Errorf("%q: %+v", text, h)
			}
		}
	})
}
