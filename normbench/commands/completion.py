"""`normbench completion`: what a shell needs to complete the words of a command line.

Each script asks `normbench complete -- WORDS`, whose last word is the one at the cursor, and gets lines of a word, a
tab and what it means; `<files>` and `<folders>` stand for what the shell completes itself.
"""

from __future__ import annotations

from normbench.commands.complete import SHELLS
from normbench.config import nearest
from normbench.errors import UsageError

# readline cuts words at the `=` and `:` in COMP_WORDBREAKS: they are put together again for the question, and what
# stands before the last cut is taken off the answers.
BASH = r"""# normbench's completion for bash: source <(normbench completion bash)
_normbench() {
    local program=${COMP_WORDS[0]/#\~/$HOME} words=() last=-1 word current kept='' before i line
    for ((i = 1; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((last >= 0)) && [[ $word == [=:]* || (-n $word && ${words[last]} == *[=:]) ]]; then
            words[last]+=$word
        else
            words[++last]=$word
        fi
    done
    current=${words[last]}
    for i in = :; do
        if [[ $COMP_WORDBREAKS == *$i* && $current == *$i* ]]; then
            before=${current%"${current##*$i}"}
            ((${#before} > ${#kept})) && kept=$before
        fi
    done
    COMPREPLY=()
    while IFS= read -r line; do
        word=${line%%$'\t'*}
        case $word in
            '<files>') compopt -o default 2>/dev/null ;;
            '<folders>') compopt -o dirnames -o nospace 2>/dev/null ;;
            *) COMPREPLY+=("${word#"$kept"}") ;;
        esac
        [[ $word == *[=.] ]] && compopt -o nospace 2>/dev/null
    done < <("$program" complete -- "${words[@]}" 2>/dev/null)
}
complete -F _normbench normbench
"""

ZSH = r"""#compdef normbench
# normbench's completion for zsh: source <(normbench completion zsh)
_normbench() {
    local -a open whole
    local line word
    for line in "${(@f)$("${words[1]/#\~/$HOME}" complete -- "${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)}"; do
        word=${line%%$'\t'*}
        case $word in
            '') ;;
            '<files>') compset -P '*='; _files; return ;;
            '<folders>') compset -P '*='; _files -/; return ;;
            *[=.]) open+=("${word//:/\\:}${${line#$word}/$'\t'/:}") ;;
            *) whole+=("${word//:/\\:}${${line#$word}/$'\t'/:}") ;;
        esac
    done
    _describe -t words normbench open -S '' -- whole
}
if [[ $funcstack[1] == _normbench ]]; then
    _normbench "$@"
else
    compdef _normbench normbench
fi
"""

FISH = r"""# normbench's completion for fish: normbench completion fish | source
function __normbench_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -l lines ($program complete -- $words[2..-1] $current 2>/dev/null)
    if contains -- "$lines[1]" '<files>' '<folders>'
        set -l key (string match -r '^[^=/]*=' -- $current)
        set -l value (string replace -r '^[^=/]*=' '' -- $current)
        set -l paths (__fish_complete_path $value)
        test "$lines[1]" = '<folders>'; and set paths (__fish_complete_directories $value '')
        for path in $paths
            echo $key$path
        end
    else
        printf '%s\n' $lines
    end
end
complete -c normbench -f -a '(__normbench_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def run(words: list[str]) -> int:
    """Print the script of a shell.

    Raises:
        UsageError: no shell or an unknown one is named.
    """
    known = " or ".join((", ".join(list(SHELLS)[:-1]), list(SHELLS)[-1]))
    if len(words) != 1:
        raise UsageError(f"completion takes the name of a shell: {known}")
    if words[0] not in SCRIPTS:
        raise UsageError(f"completion {words[0]} is unknown: {nearest(words[0], SCRIPTS)}allowed are {known}")
    print(SCRIPTS[words[0]], end="")
    return 0
