use super::*;

/// Gemma 3's format: the system text goes before the first turn, the assistant is "model".
const GEMMA: &str = r#"{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set first_prefix = '' -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Turns of user and assistant must alternate') }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_prefix if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"#;

/// Llama 3's format, with the date of 3.2.
const LLAMA3: &str = r"{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now('%d %b %Y') %}
    {%- else %}
        {%- set date_string = '26 Jul 2024' %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'].strip() %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools is not none %}
    {{- 'Environment: ipython\n' }}
{%- endif %}
{{- 'Today Date: ' + date_string + '\n\n' }}
{{- system_message }}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
";

/// Mistral's format: instructions in brackets, answers closed by EOS.
const MISTRAL: &str = r"{%- set ns = namespace(index=0) -%}
{{ bos_token }}
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant'] %}
        {{- raise_exception('Only user and assistant roles are supported, not ' ~ message.role) }}
    {%- endif %}
    {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}
        {{- raise_exception('Roles must alternate') }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
    {%- if message['role'] == 'user' %}
        {{- ' [INST] ' + message['content'] + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}";

fn chat(turns: &[(&str, &str)]) -> Vec<Message> {
    turns.iter().map(|(role, content)| Message::new(*role, *content)).collect()
}

fn render(source: &str, turns: &[(&str, &str)]) -> Result<String, TemplateError> {
    ChatTemplate::new(source)?.render(&chat(turns), true, "<s>", "</s>", None)
}

/// Renders a source that does not look at messages.
fn text(source: &str) -> String {
    render(source, &[]).unwrap()
}

#[test]
fn gemma_turns() {
    let turns = [("system", "Be kind."), ("user", " Hi "), ("assistant", "Hello"), ("user", "Bye")];
    let expected = "<s><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n\
                    <start_of_turn>model\nHello<end_of_turn>\n\
                    <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(render(GEMMA, &turns).unwrap(), expected);
}

#[test]
fn llama3_turns_with_and_without_a_date() {
    let template = ChatTemplate::new(LLAMA3).unwrap();
    let messages = chat(&[("system", " Be kind. "), ("user", "Hi\n")]);
    let render = |now| template.render(&messages, true, "<|begin_of_text|>", "", now).unwrap();
    let expected = |date| {
        format!(
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: {date}\n\n\
             Be kind.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n"
        )
    };
    assert_eq!(render(None), expected("26 Jul 2024"));
    assert_eq!(render(Some(Date::from_unix(1_709_215_445))), expected("29 Feb 2024"));
}

#[test]
fn mistral_turns() {
    let turns = [("user", "Hi"), ("assistant", "Hello"), ("user", "Bye")];
    let expected = "<s> [INST] Hi [/INST] Hello</s> [INST] Bye [/INST]";
    assert_eq!(render(MISTRAL, &turns).unwrap(), expected);
}

#[test]
fn what_a_template_raises_is_passed_on() {
    let error = render(MISTRAL, &[("system", "x")]).unwrap_err();
    let message = "Only user and assistant roles are supported, not system".into();
    assert_eq!(error, TemplateError::Raised { message });
    let error = render(MISTRAL, &[("assistant", "x")]).unwrap_err();
    assert_eq!(error, TemplateError::Raised { message: "Roles must alternate".into() });
}

#[test]
fn syntax_errors_have_a_line() {
    for (source, line) in [("a\n{% if %}\n", 2), ("a\n\n{{ x", 3), ("{% for a in b %}\n", 2)] {
        match ChatTemplate::new(source).unwrap_err() {
            TemplateError::Syntax { line: found, .. } => assert!(found <= Some(line), "{source:?}"),
            other => panic!("{source:?} gives {other}"),
        }
    }
    let error = ChatTemplate::new("a\n{% if %}\n").unwrap_err().to_string();
    assert!(error.starts_with("the chat template has a syntax error in line 2: "), "{error}");
}

#[test]
fn failures_have_a_line_and_a_reason() {
    let error = render("a\n\n{{ messages[0].content.frobnicate() }}", &[("user", "x")]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("in line 3") && error.contains("frobnicate"), "{error}");
    let error = render("{{ nothing.at.all }}", &[]).unwrap_err();
    assert!(matches!(error, TemplateError::Render { line: Some(1), .. }), "{error}");
    let template = ChatTemplate::new("{{ strftime_now('%Q') }}").unwrap();
    let error = template.render(&[], true, "", "", Some(Date::from_unix(0))).unwrap_err();
    assert!(error.to_string().contains("%Q"), "{error}");
}

#[test]
fn generation_blocks_are_transparent() {
    let source = "{% for m in messages %}\n\
                  {%- if m.role == 'assistant' %}\n\
                  {% generation %}\n{{ m.content }}\n{%- endgeneration -%}\n\
                  {% endif %}\n{% endfor %}|";
    let without = source.replace("{% generation %}", "{% if true %}");
    let without = without.replace("{%- endgeneration -%}", "{%- endif -%}");
    let turns = [("assistant", "Hello"), ("user", "x"), ("assistant", "Bye")];
    let rendered = render(source, &turns).unwrap();
    assert_eq!(rendered, render(&without, &turns).unwrap());
    assert_eq!(rendered, "HelloBye|");
}

#[test]
fn blocks_are_trimmed_as_transformers_does() {
    assert_eq!(text("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
    assert_eq!(text("a\n  {%- if true -%}\n  b\n  {%- endif -%}\n c"), "abc");
}

#[test]
fn python_methods_work() {
    let cases = [
        ("{{ '  a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ ' a '.strip() }}", "a | a|a"),
        ("{{ 'xxaxx'.strip('x') }}", "a"),
        ("{{ 'a</think>b'.split('</think>')[-1] }}", "b"),
        ("{{ 'a b'.split() | length }}", "2"),
        ("{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }}", "True True"),
        ("{{ 'aB'.upper() }}{{ 'aB'.lower() }}{{ 'ab c'.title() }}", "ABabAb C"),
        ("{{ 'a-b'.replace('-', '+') }}", "a+b"),
        ("{% for k, v in {'x': 1, 'y': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "x=1;y=2;"),
        ("{{ {'x': 1}.get('y', 'no') }}", "no"),
        ("{{ [1, 2, 3][::-1] }}", "[3, 2, 1]"),
    ];
    for (source, expected) in cases {
        assert_eq!(text(source), expected, "{source}");
    }
}

#[test]
fn loops_can_be_left_and_skipped() {
    let source = "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}\
                  {% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}";
    assert_eq!(text(source), "023");
}

#[test]
fn macros_and_namespaces_work() {
    let source = "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(n=0) %}\
                  {% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ twice(ns.n) }}";
    assert_eq!(text(source), "33");
}

#[test]
fn json_is_written_as_python_writes_it() {
    let cases = [
        (
            "{{ {'b': [1, 2.5, none], 'a': 'é<\"'} | tojson }}",
            r#"{"b": [1, 2.5, null], "a": "é<\""}"#,
        ),
        ("{{ [] | tojson }}{{ {} | tojson }}{{ true | tojson }}", "[]{}true"),
        ("{{ {'a': [1]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ]\n}"),
        ("{{ 1.0 | tojson(ensure_ascii=false) }}", "1.0"),
    ];
    for (source, expected) in cases {
        assert_eq!(text(source), expected, "{source}");
    }
    assert!(render("{{ 1 | tojson(colour=1) }}", &[]).is_err());
}

#[test]
fn hostile_templates_end() {
    let loops = "{% for a in range(9999) %}".repeat(6) + "x" + &"{% endfor %}".repeat(6);
    let sources = [
        loops.as_str(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 4000000000 }}",
        "{% set ns = namespace(s='x' * 1000) %}{% for i in range(99) %}\
         {% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "{{ range(4000000000) | list | length }}",
        "{{ 'aaaaaaaaaaaaaaaa'.replace('', 'b' * 99999).replace('', 'c' * 99999) }}",
    ];
    for source in sources {
        let error = render(source, &[]).unwrap_err();
        let is_bound =
            matches!(error, TemplateError::TooMuchWork { .. } | TemplateError::Render { .. });
        assert!(is_bound, "{source}: {error}");
    }
    let nested = "{% if true %}".repeat(100_000);
    assert!(matches!(ChatTemplate::new(&nested), Err(TemplateError::TooLong { .. })));
    let nested = "(".repeat(50_000);
    assert!(ChatTemplate::new(&format!("{{{{ {nested} }}}}")).is_err());
    let nested = "{% if true %}".repeat(10_000);
    assert!(matches!(ChatTemplate::new(&nested), Err(TemplateError::Syntax { .. })));
}

#[test]
fn long_conversations_are_not_hostile() {
    let turns: Vec<_> =
        (0..2_000).map(|idx| [("user", "a"), ("assistant", "b")][idx % 2]).collect();
    assert!(render(GEMMA, &turns).unwrap().len() > 60_000);
    let long = "word ".repeat(1_000_000);
    assert!(render(MISTRAL, &[("user", &long)]).unwrap().len() > long.len());
}
