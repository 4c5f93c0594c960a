package httpapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"gatehouse/shared/must"
)

// document is the part of openapi.json that tests read.
type document struct {
	Paths      map[string]map[string]operation
	Components struct {
		Schemas map[string]struct{ Enum []string }
	}
}

type operation struct {
	OperationID string `json:"operationId"`
	Security    []map[string][]string
	Responses   map[string]struct {
		Description string
		Content     map[string]json.RawMessage
		Codes       []string `json:"x-error-codes"`
	}
}

// operations are the document's operations by method and path, such as "GET /user".
func (d document) operations() map[string]operation {
	all := map[string]operation{}
	for path, methods := range d.Paths {
		for method, op := range methods {
			all[strings.ToUpper(method)+" "+path] = op
		}
	}
	return all
}

// spec is the document, compiled once.
var spec = sync.OnceValue(func() (s struct {
	doc      document
	compiler *jsonschema.Compiler
}) {
	if err := json.Unmarshal(OpenAPI(), &s.doc); err != nil {
		panic(err)
	}
	raw, err := jsonschema.UnmarshalJSON(bytes.NewReader(OpenAPI()))
	if err != nil {
		panic(err)
	}
	s.compiler = jsonschema.NewCompiler()
	s.compiler.AssertFormat()
	if err := s.compiler.AddResource("openapi.json", raw); err != nil {
		panic(err)
	}
	return s
})

var (
	schemas   = map[string]*jsonschema.Schema{}
	schemasMu sync.Mutex
)

func schemaAt(t testing.TB, pointer string) *jsonschema.Schema {
	t.Helper()
	schemasMu.Lock()
	defer schemasMu.Unlock()
	if s := schemas[pointer]; s != nil {
		return s
	}
	s, err := spec().compiler.Compile("openapi.json#" + pointer)
	if err != nil {
		t.Fatalf("openapi.json%s: %v", pointer, err)
	}
	schemas[pointer] = s
	return s
}

var pathParameter = regexp.MustCompile(`\{[a-z_]+\}`)

// pathOf is the document's path that a request's path belongs to.
func pathOf(asked string) string {
	doc := spec().doc
	if _, ok := doc.Paths[asked]; ok {
		return asked
	}
	for template := range doc.Paths {
		if ok, _ := path.Match(pathParameter.ReplaceAllString(template, "?*"), asked); ok {
			return template
		}
	}
	return ""
}

// conforms checks an answer against openapi.json: that its status is foreseen, that its body has the
// described form and that a failure's code is one of those listed for it.
func conforms(t testing.TB, method, asked string, a answer) {
	t.Helper()
	template := pathOf(strings.TrimSuffix(asked, "/"))
	if method == "HEAD" || a.StatusCode == 405 || template == "" {
		return
	}
	op, ok := spec().doc.Paths[template][strings.ToLower(method)]
	if !ok {
		return
	}
	status := strconv.Itoa(a.StatusCode)
	met.Store(fmt.Sprint(method, " ", template, " ", status, " ", a.Header.Get("X-Sb-Error-Code")), true)
	answer, ok := op.Responses[status]
	if !ok {
		t.Errorf("openapi.json: %s %s has no answer %s: %s", method, template, status, a.body)
		return
	}
	if answer.Content == nil {
		if a.body != "" {
			t.Errorf("openapi.json: %s %s %s has no body, got %s", method, template, status, a.body)
		}
		return
	}
	kind, _, _ := strings.Cut(a.Header.Get("Content-Type"), ";")
	if answer.Content[kind] == nil {
		t.Errorf("openapi.json: %s %s %s as %q", method, template, status, kind)
		return
	}
	if kind != "application/json" {
		if code := a.Header.Get("X-Sb-Error-Code"); code != "" && !slices.Contains(answer.Codes, code) {
			t.Errorf("openapi.json: %s %s %s does not list the code %q", method, template, status, code)
		}
		return
	}
	body, err := jsonschema.UnmarshalJSON(strings.NewReader(a.body))
	if err != nil {
		t.Errorf("%s %s %s: %v in %s", method, template, status, err, a.body)
		return
	}
	pointer := fmt.Sprintf("/paths/%s/%s/responses/%s/content/application~1json/schema",
		strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(template), strings.ToLower(method),
		status)
	if err := schemaAt(t, pointer).Validate(body); err != nil {
		t.Errorf("openapi.json: %s %s %s: %v\nin %s", method, template, status, err, a.body)
	}
	if a.StatusCode == 400 && strings.HasPrefix(a.body, `{"error":`) {
		return // the form of RFC 6749 has no code of ours
	}
	if code := a.Header.Get("X-Sb-Error-Code"); answer.Codes != nil && !slices.Contains(answer.Codes, code) {
		t.Errorf("openapi.json: %s %s %s does not list the code %q: %s", method, template, status, code, a.body)
	}
}

// met has every route, status and code that some test has seen.
var met sync.Map

// suite runs all tests and then checks that they have seen each failure that openapi.json lists.
type suite struct{ *testing.M }

func (s suite) Run() int {
	code := s.M.Run()
	if code != 0 || flag.Lookup("test.run").Value.String() != "" || flag.Lookup("test.skip").Value.String() != "" {
		return code
	}
	if _, any := met.Load("GET /health 200 "); !any {
		return code // no server to test on
	}
	// The answers that any route may give when a server is unreachable or a body too large are tested for some
	// routes.
	anywhere := []string{"413 request_entity_too_large", "500 unexpected_failure", "503 unexpected_failure",
		"504 request_timeout"}
	for route, op := range spec().doc.operations() {
		for status, answer := range op.Responses {
			for _, name := range answer.Codes {
				what := status + " " + name
				if _, ok := met.Load(route + " " + what); !ok && !slices.Contains(anywhere, what) {
					fmt.Printf("no test has met %s: %s\n", route, what)
					code = 1
				}
			}
		}
	}
	return code
}

// served are the routes as routes.go lists them.
func served(t testing.TB) []string {
	t.Helper()
	text, err := os.ReadFile("routes.go")
	must.Succeed(t, err)
	var list []string
	for _, m := range regexp.MustCompile(`\tat\("([A-Z]+ /[^"]*)"`).FindAllStringSubmatch(string(text), -1) {
		list = append(list, m[1])
	}
	slices.Sort(list)
	return list
}

func TestOpenAPI_listsTheRoutes(t *testing.T) {
	operations := spec().doc.operations()
	ids := map[string]bool{}
	for route, op := range operations {
		if ids[op.OperationID] || op.OperationID == "" {
			t.Errorf("%s: operationId %q", route, op.OperationID)
		}
		ids[op.OperationID] = true
		for status, answer := range op.Responses {
			if answer.Description == "" {
				t.Errorf("%s %s is not described", route, status)
			}
			for _, code := range answer.Codes {
				if !slices.Contains(spec().doc.Components.Schemas["ErrorCode"].Enum, code) {
					t.Errorf("%s %s: code %q is none", route, status, code)
				}
			}
		}
	}
	if d := cmp.Diff(served(t), slices.Sorted(maps.Keys(operations))); d != "" {
		t.Errorf("routes.go (-) and openapi.json (+):\n%s", d)
	}
}

// Every code that the flows can refuse with is in the document, and the other way round; those that are
// not made by the router belong to some operation.
func TestOpenAPI_listsTheCodes(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../account/refusal/codes.go", nil, 0)
	must.Succeed(t, err)
	var codes []string
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			code, _ := strconv.Unquote(lit.Value)
			codes = append(codes, code)
		}
		return true
	})
	slices.Sort(codes)
	enum := slices.Sorted(slices.Values(spec().doc.Components.Schemas["ErrorCode"].Enum))
	if d := cmp.Diff(codes, enum); d != "" {
		t.Errorf("codes.go (-) and openapi.json (+):\n%s", d)
	}
	used := map[string]bool{"not_found": true, "method_not_allowed": true, "passkey_disabled": true,
		"feature_disabled": true} // of whole trees of paths
	for _, op := range spec().doc.operations() {
		for _, answer := range op.Responses {
			for _, code := range answer.Codes {
				used[code] = true
			}
		}
	}
	if d := cmp.Diff(codes, slices.Sorted(maps.Keys(used))); d != "" {
		t.Errorf("codes (-) and those that an operation lists (+):\n%s", d)
	}
}

func TestOpenAPI_isServed(t *testing.T) {
	a := open(t)
	got := a.do("GET /openapi.json", nil).is(200, string(OpenAPI()))
	if got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", got.Header)
	}
	// All schemas compile, used by a test or not.
	for name := range spec().doc.Components.Schemas {
		schemaAt(t, "/components/schemas/"+name)
	}
}
